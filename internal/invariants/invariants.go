// Package invariants asserts, in test builds, what the comments on fields promise.
//
// The checks exist only under the build tag "invariants" (scripts/test sets it).
// Guard a check that costs something, or whose arguments do, with Enabled: the
// compiler then removes it from other builds.
package invariants

import "fmt"

// Check panics when an invariant does not hold. Without the build tag it does
// nothing.
func Check(holds bool, format string, args ...any) {
	if Enabled && !holds {
		panic("invariant violated: " + fmt.Sprintf(format, args...))
	}
}
