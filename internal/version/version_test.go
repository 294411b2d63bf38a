package version

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The binary, the C library and the Python package have one version.
func TestOneVersion(t *testing.T) {
	for name, want := range map[string]string{
		"../../clients/python/src/hf3fs_py_usrbio/_version.py": `__version__ = "` + Current() + `"`,
		"../../clients/c/Makefile":                             "VERSION ?= $(shell cat ../../VERSION 2>/dev/null)",
	} {
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), want+"\n") {
			t.Errorf("%s does not have %q: %v", name, want, err)
		}
	}
}

// Scripts and packagers read the file at the root of the repository.
func TestRootFileMatches(t *testing.T) {
	root, err := os.ReadFile("../../VERSION")
	if err != nil || string(root) != file {
		t.Errorf("VERSION at the root has %q (%v), the embedded file has %q", root, err, file)
	}
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9a-z.]+)?$`).MatchString(Current()) {
		t.Errorf("%q is not a semantic version", Current())
	}
}
