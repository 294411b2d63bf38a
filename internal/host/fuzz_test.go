package host

import (
	"strings"
	"testing"
)

func FuzzMountinfo(f *testing.F) {
	f.Add(mountinfo)
	f.Add("1 2 3 4 \\0 6 - \\777 b")
	f.Add(" - - - ")
	f.Fuzz(func(t *testing.T, text string) {
		all := parseMountinfo(text)
		if len(all) > strings.Count(text, "\n")+1 {
			t.Fatalf("%d mounts from %q", len(all), text)
		}
		for _, m := range all {
			if m.Point == "" || m.Type == "" || m.Source == "" {
				t.Fatalf("incomplete mount: %+v", m)
			}
			if found, ok := Holding(all, m.Point); !ok || !Within(m.Point, found.Point) {
				t.Fatalf("%q is on %q", m.Point, found.Point)
			}
		}
	})
}

func FuzzLimits(f *testing.F) {
	f.Add(limitsTable)
	f.Add("Max open files            18446744073709551616 -1 files")
	f.Add(strings.Repeat(" ", 25) + "1 2")
	f.Fuzz(func(t *testing.T, text string) {
		for name, l := range parseLimits(text) {
			if name == "" || l.Soft < 0 || l.Hard < 0 {
				t.Fatalf("%q: %+v", name, l)
			}
		}
	})
}

func FuzzKernel(f *testing.F) {
	for _, release := range []string{"6.18.44", "6.9", "6.", ".", "-1.-1", "99999999999999999999.1"} {
		f.Add(release)
	}
	f.Fuzz(func(t *testing.T, release string) {
		if k, err := parseKernel(release); err == nil && k.Minor < 0 {
			t.Fatalf("%q is %+v", release, k)
		}
	})
}

func FuzzState(f *testing.F) {
	f.Add("77 (a ) T (b) S 1 77")
	f.Add(")")
	f.Fuzz(func(t *testing.T, stat string) { parseState(stat) })
}
