package host

import "testing"

func TestProcessor(t *testing.T) {
	for text, want := range map[string]string{
		"processor\t: 0\nvendor_id\t: A\nmodel name\t: Make  Model 7 @ 2.5GHz\nflags : a:b\nmodel name : other\n": "Make Model 7 @ 2.5GHz",
		"processor\t: 0\nBogoMIPS\t: 50.00\n": "",
		"":                                    "",
	} {
		if got := fixture(t, map[string]string{"/proc/cpuinfo": text}).Processor(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := (Host{Root: t.TempDir()}).Processor(); got != "" {
		t.Error(got)
	}
}
