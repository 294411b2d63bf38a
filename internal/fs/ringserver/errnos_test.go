package ringserver

import (
	"os"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"
)

// What requests are refused with, and what is counted apart, has a meaning that the reference prints.
func TestErrnosHaveMeanings(t *testing.T) {
	known := map[string]bool{}
	for _, e := range Errnos() {
		name := unix.ErrnoName(e.Errno)
		if known[name] || e.Meaning == "" {
			t.Errorf("%s is there twice, or means nothing", name)
		}
		known[name] = true
	}
	for _, errno := range trafficErrnos {
		if name := unix.ErrnoName(errno); errno != 0 && !known[name] {
			t.Errorf("%s is counted, and has no meaning", name)
		}
	}
	seen := 0
	for _, source := range []string{"execute.go", "iov.go"} {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`syscall\.(E[A-Z]+)\b`).FindAllStringSubmatch(string(text), -1) {
			seen++
			if !known[found[1]] {
				t.Errorf("%s answers %s, which has no meaning", source, found[1])
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d errnos found in the sources", seen)
	}
}
