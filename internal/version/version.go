// Package version holds the version of kv3fs: the content of its file VERSION, which
// the root of the repository links to.
package version

import (
	_ "embed"
	"strings"
)

//go:embed VERSION
var file string

// Current returns the version, such as 0.1.0.
func Current() string { return strings.TrimSpace(file) }
