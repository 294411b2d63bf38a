package wire_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// decimalName returns the name with which upstream's library unlinks a ring.
func decimalName(l wire.Link) string {
	flags := l.Flags
	l.Flags = 0
	return l.Name() + ".f" + strconv.FormatUint(flags, 10)
}

func TestParseUUID(t *testing.T) {
	for _, s := range []string{uuidText, strings.ToUpper(uuidText)} {
		u, ok := wire.ParseUUID(s)
		if !ok || u != testUUID() {
			t.Errorf("%s: %x, %v", s, u, ok)
		}
		if u.String() != uuidText {
			t.Errorf("%s is spelled %s", s, u)
		}
	}
	for _, s := range []string{
		"", uuidText[1:], uuidText + "0", "{" + uuidText[2:] + "}", " " + uuidText[1:],
		strings.ReplaceAll(uuidText, "-", ""),
		strings.ReplaceAll(uuidText, "-", "_"),
		strings.Replace(uuidText, "3", "g", 1),
		strings.Replace(uuidText, "3f", "-3", 1),
		"3fa85f6-45717-4562-b3fc-2c963f66afa6",
		"urn:uuid:" + uuidText[9:],
	} {
		if u, ok := wire.ParseUUID(s); ok || u != (wire.UUID{}) {
			t.Errorf("%q: %x, %v", s, u, ok)
		}
	}
}

func TestNewUUID(t *testing.T) {
	seen := map[wire.UUID]bool{}
	for range 1000 {
		u := wire.NewUUID()
		if s := u.String(); s[14] != '4' || !strings.ContainsRune("89ab", rune(s[19])) {
			t.Fatalf("%s is not of version 4", s)
		}
		if seen[u] {
			t.Fatalf("%s twice", u)
		}
		seen[u] = true
	}
}

// FuzzUUID: accepted text is the value's canonical form, in upper or lower case, and the
// text of every value is accepted.
func FuzzUUID(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string, raw []byte) {
		if u, ok := wire.ParseUUID(text); ok && u.String() != strings.ToLower(text) {
			t.Fatalf("%q became %s", text, u)
		}
		var u wire.UUID
		copy(u[:], raw)
		if again, ok := wire.ParseUUID(u.String()); !ok || again != u {
			t.Fatalf("%s became %s, %v", u, again, ok)
		}
	})
}
