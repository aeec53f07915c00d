package host

import (
	"strings"
	"testing"
)

// What a node gives as its reason goes into the log.
func TestReplyError(t *testing.T) {
	for _, tc := range []struct {
		name, message, want string
	}{
		{"a reason", "no", "no"},
		{"no reason: the error would end in nothing", " \n", "status 1, without a reason"},
		{"a megabyte: the log would fill up", strings.Repeat("x", 1<<20), strings.Repeat("x", maxShown) + "..."},
		{"cut within a character", strings.Repeat("x", maxShown-1) + "é", strings.Repeat("x", maxShown-1) + "..."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := (&ReplyError{Code: 1, Message: tc.message}).Error(); got != tc.want {
				t.Errorf("got %.80q of %d bytes", got, len(got))
			}
		})
	}
}
