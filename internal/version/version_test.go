package version

import (
	"os"
	"regexp"
	"testing"
)

// The file at the root of the repository is what scripts and packagers read.
func TestRootFileSaysTheSame(t *testing.T) {
	root, err := os.ReadFile("../../VERSION")
	if err != nil || string(root) != file {
		t.Errorf("VERSION at the root has %q (%v), the embedded one %q", root, err, file)
	}
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9a-z.]+)?$`).MatchString(Current()) {
		t.Errorf("%q is no semantic version", Current())
	}
}
