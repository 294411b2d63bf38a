package lease

import (
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for _, token := range []uint64{1, 42, mostToken} {
		if got, ok := parseName(nameOf(token)); !ok || got != token {
			t.Errorf("%s: %d", nameOf(token), got)
		}
	}
	for _, name := range []string{"", "lease-", "lease-000000000000", "lease-1", "lease-00000000000a", "lease--00000000001", "lease-+00000000001", "lease-0000000000001", "xlease-000000000001"} {
		if token, ok := parseName(name); ok {
			t.Errorf("%q is token %d", name, token)
		}
	}
}

// Whatever the bytes of a lease's file are, decode returns an error or a record that encode writes.
func FuzzRecord(f *testing.F) {
	good, err := record{Token: 7, Holder: Holder{Identity: "machine-1", Host: "h", PID: 3, Nonce: "n"}, PeriodMs: 30000, Renewals: 1}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(strings.Repeat(" ", recordBytes-1) + "\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			return
		}
		again, err := r.encode()
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		if same, err := decode(again); err != nil || same != r {
			t.Fatalf("%+v became %+v: %v", r, same, err)
		}
	})
}
