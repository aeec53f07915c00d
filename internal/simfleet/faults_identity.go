package simfleet

import (
	"context"
	"strings"
)

// identityFaults are nodes with odd names.
func identityFaults() []Fault {
	return []Fault{
		renamed("identity-capitals", "a name in capitals", "Capitals.Example.NET"),
		renamed("identity-underscore", "a name with underscores", "under_score.example.net"),
		renamed("identity-percent", "a name with what formats text", "per%scent%n%00.example.net"),
		renamed("identity-dash", "a name that looks like an option", "--config=.example.net"),
		renamed("identity-shell", "a name that a shell would run", "$(touch${IFS}x);`touch${IFS}y`|'\"&.example.net"),
		renamed("identity-slash", "a name that leaves its directory", "/etc/passwd\\x"),
		renamed("identity-unicode", "a name in other scripts", "knöten-节点-🦀.example.net"),
		renamed("identity-right-to-left", "a name that a terminal shows from the end", "\u202eten.elpmaxe.\u202c"),
		renamed("identity-253", "the longest name there can be", strings.Repeat("long.", 48)+"example.net.x"),
		renamed("identity-254", "a name that is too long", strings.Repeat("long.", 48)+"example.net.xx"),
		{
			Name:  "identity-forged",
			About: "a node that announces and answers discovery under names that no node can have",
			Apply: func(_ *Broker, o *NodeOptions) error {
				o.PongAs = ">"

				return nil
			},
			Beside: func(ctx context.Context, f *Fleet, _ *Node) error {
				return f.Announce(ctx, "*", "a b", "a\nb", "a\tb", "a\x00b", "a..b", ".a", "a.", ".", " ", "\xff", strings.Repeat("x", 100_000))
			},
		},
	}
}

func renamed(name, about, identity string) Fault {
	return Fault{Name: name, About: about, Apply: func(_ *Broker, o *NodeOptions) error {
		o.Identity = identity

		return nil
	}}
}
