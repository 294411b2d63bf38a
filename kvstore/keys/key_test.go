package keys

import (
	"strings"
	"testing"
)

func TestParseKey(t *testing.T) {
	k := Key{0: 0xab, 15: 1}
	again, err := ParseKey(k.String())
	if err != nil || again != k {
		t.Errorf("%v, %v", again, err)
	}
	for _, bad := range []string{"", "ab", k.String() + "0", strings.Repeat("x", 32)} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("%q is parsed as a key", bad)
		}
	}
}
