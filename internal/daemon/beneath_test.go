package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"
)

// A daemon without root is not told to take from itself the right to write to the directory:
// its helper refuses to mount there.
func TestBeneathCures(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	const user = 1000
	for uid, cure := range map[uint32]string{0: "chmod 000", user: "chmod 700"} {
		var text bytes.Buffer
		warnBeneath(slog.New(slog.NewTextHandler(&text, nil)), dir, uid)
		if said := text.String(); strings.Count(said, "chmod") != 1 || !strings.Contains(said, cure) {
			t.Errorf("user %d is told %q, want %q", uid, said, cure)
		}
	}
}
