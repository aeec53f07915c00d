// Package defects puts the older provisioner's defects back, one at a time, and
// checks that a test of this project fails for each: a check that cannot fail is
// none. Its tests are built with the tag defects; `make test-defects` runs them.
package defects
