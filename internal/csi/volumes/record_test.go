package volumes

import (
	"os"
	"path/filepath"
	"testing"
)

// A record that was cut off or changed anywhere is refused, or says what it said.
func TestDamagedRecords(t *testing.T) {
	want := Record{Volume: "v", Target: "/var/lib/kubelet/pods/p/volumes/x/mount", SubDirectory: "a/b", QuotaBytes: 1 << 30, Pages: "llama", ReadOnly: true, Group: "2000", Namespace: "team<a>", Pod: "é"}
	text, err := encodeRecord(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeRecord(text); err != nil || got != want {
		t.Fatalf("%+v, %v", got, err)
	}
	for n := range text {
		if _, err := decodeRecord(text[:n]); err == nil {
			t.Errorf("the first %d bytes of %d are believed", n, len(text))
		}
		for bit := range 8 {
			changed := append([]byte{}, text...)
			changed[n] ^= 1 << bit
			if got, err := decodeRecord(changed); err == nil && got != want {
				t.Errorf("bit %d of byte %d: %+v", bit, n, got)
			}
		}
	}
}

// What leads outside is refused, whoever has written it with a valid sum.
func TestRecordsThatLeadOutside(t *testing.T) {
	for _, r := range []Record{{Target: "relative", SubDirectory: "."}, {Target: "/t", SubDirectory: "../x"}, {Target: "/t", SubDirectory: "/x"}, {Target: "/t"}, {Target: "/t", SubDirectory: ".kv3fs"}} {
		text, err := encodeRecord(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeRecord(text); err == nil {
			t.Errorf("%+v is believed", r)
		}
	}
}

// Files that are no records, or are another's, are set aside; the others are read.
func TestLedger(t *testing.T) {
	l := ledger{t.TempDir()}
	kept := Record{Volume: "kept", Target: "/k", SubDirectory: "."}
	for _, r := range []Record{{Volume: "old", Target: "/k", SubDirectory: "."}, kept, {Volume: "gone", Target: "/g", SubDirectory: "."}} {
		if err := l.save(r); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := l.remove("/g"); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(l.path("/k"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"empty.json": "", "copy.json": string(text), "future.json": `{"format":2}`, "other.txt": "x", "left.json.new": "x"} {
		if err := os.WriteFile(filepath.Join(l.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(l.dir, "dir.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	torn := 0
	all, err := l.load(func(string, error) { torn++ })
	if err != nil || len(all) != 1 || all["/k"] != kept || torn != 4 {
		t.Errorf("%v, %d torn, %v", all, torn, err)
	}
	if all, err = l.load(func(file string, why error) { t.Error(file, why) }); err != nil || len(all) != 1 {
		t.Errorf("again: %v, %v", all, err)
	}
}
