// Package settings holds the settings that clients read under 3fs-virt/get-conf and
// change under 3fs-virt/set-conf (section 2.5 of the protocol): sys keys, which the
// whole daemon shares, and usr keys, which each uid may set for itself.
//
// A uid's own value overrides the daemon-wide one for that key only; every other key
// still follows daemon-wide changes. Two rules differ from upstream on purpose: only
// root and the daemon's own uid may set sys keys, and setting one usr key does not
// freeze the others at their current values.
//
// Errors are of type syscall.Errno: the number that the client sees.
package settings
