// Package version holds the version of kv3fs. It is the content of the file VERSION in
// this directory, to which VERSION at the root of the repository is a link.
package version

import (
	_ "embed"
	"strings"
)

//go:embed VERSION
var file string

// Current returns the version, such as 1.3.0.
func Current() string { return strings.TrimSpace(file) }
