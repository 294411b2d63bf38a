package etcdlog

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

var sampleHeader = snapshotHeader{by: writer{"host-1", "1.2.3"}, cluster: "c1", index: 9, chain: chain{4}, state: 11}

var sampleRecords = []string{"one", "", strings.Repeat("long", 9000), "last"}

func emitSample(emit func([]byte) error) error {
	for _, r := range sampleRecords {
		if err := emit([]byte(r)); err != nil {
			return err
		}
	}
	return nil
}

func writeSample(t testing.TB, w io.Writer) (bytes int64, sum chain) {
	bytes, sum, err := encodeSnapshot(w, &sampleHeader, emitSample)
	if err != nil {
		t.Fatal(err)
	}
	return bytes, sum
}

func TestSnapshotsComeBack(t *testing.T) {
	var file bytes.Buffer
	n, sum := writeSample(t, &file)
	var got []string
	h, gotSum, err := decodeSnapshot(&file, func(rec []byte) error { got = append(got, string(rec)); return nil })
	if err != nil || h != sampleHeader || gotSum != sum || n == 0 || !slices.Equal(got, sampleRecords) {
		t.Fatal(h, err)
	}
}

func TestDamagedSnapshotsAreRefused(t *testing.T) {
	var file bytes.Buffer
	writeSample(t, &file)
	whole := file.Bytes()
	ignore := func([]byte) error { return nil }
	for i := range whole {
		if i > 200 && i < len(whole)-200 && i%97 != 0 {
			continue
		}
		bad := bytes.Clone(whole)
		bad[i] ^= 1
		if _, _, err := decodeSnapshot(bytes.NewReader(bad), ignore); err == nil {
			t.Errorf("byte %d", i)
		}
		if _, _, err := decodeSnapshot(bytes.NewReader(whole[:i]), ignore); err == nil {
			t.Errorf("%d bytes", i)
		}
	}
	if _, _, err := decodeSnapshot(bytes.NewReader(append(bytes.Clone(whole), 0)), ignore); err == nil {
		t.Error("one byte more")
	}
}

func TestSnapshotFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	r, err := writeSnapshot(dir, &sampleHeader, emitSample)
	if err != nil {
		t.Fatal(err)
	}
	read := func(r reference, cluster string) error {
		return readSnapshot(dir, cluster, r, func([]byte) error { return nil })
	}
	if err := read(r, "c1"); err != nil {
		t.Fatal(err)
	}
	if err := read(r, "c2"); !errors.Is(err, pageservice.ErrCorrupt) {
		t.Error("of another cluster:", err)
	}
	other := r
	other.Sum[0]++
	if err := read(other, "c1"); !errors.Is(err, pageservice.ErrCorrupt) {
		t.Error("with another hash:", err)
	}
	if err := os.Truncate(filepath.Join(dir, r.File), r.Bytes-1); err != nil {
		t.Fatal(err)
	}
	if err := read(r, "c1"); !errors.Is(err, pageservice.ErrCorrupt) || !strings.Contains(err.Error(), r.File) {
		t.Error("cut short:", err)
	}

	failing := errors.New("failing")
	later := sampleHeader
	later.index++
	if _, err := writeSnapshot(dir, &later, func(func([]byte) error) error { return failing }); !errors.Is(err, failing) {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Error("a snapshot that failed has left something:", left, err)
	}
}

func TestOnlyOldSnapshotsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	var refs []reference
	for _, h := range []snapshotHeader{
		{by: writer{Host: "a"}, cluster: "c1", index: 5}, {by: writer{Host: "b"}, cluster: "c1", index: 7}, {by: writer{Host: "c"}, cluster: "c1", index: 7},
		{by: writer{Host: "a"}, cluster: "c1", index: 9}, {by: writer{Host: "a"}, cluster: "c2", index: 5}, {by: writer{Host: "a-b"}, cluster: "c3", index: 50},
	} {
		r, err := writeSnapshot(dir, &h, emitSample)
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, r)
	}
	former := time.Now().Add(-formerAge - time.Hour) // of clusters before: c3
	no := filepath.Join(dir, "no-snapshot-1")
	if err := os.WriteFile(no, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, old := range []string{no, filepath.Join(dir, refs[0].File), filepath.Join(dir, refs[5].File)} {
		if err := os.Chtimes(old, former, former); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeSnapshots(dir, "c1", 7, refs[1:2]); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	want := []string{refs[1].File, refs[3].File, refs[4].File, filepath.Base(no)}
	if slices.Sort(want); !slices.Equal(left, want) {
		t.Errorf("%q are left; want %q", left, want)
	}
}

func FuzzSnapshot(f *testing.F) {
	var file bytes.Buffer
	writeSample(f, &file)
	f.Add(file.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		var recs [][]byte
		h, sum, err := decodeSnapshot(bytes.NewReader(b), func(rec []byte) error { recs = append(recs, bytes.Clone(rec)); return nil })
		if err != nil {
			return
		}
		var again bytes.Buffer
		_, sumAgain, err := encodeSnapshot(&again, &h, func(emit func([]byte) error) error {
			for _, rec := range recs {
				if err := emit(rec); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// A length can be written in more than one way, but then the hash is another.
		if sum == sumAgain && !bytes.Equal(again.Bytes(), b) {
			t.Errorf("%x is written as %x", b, again.Bytes())
		}
	})
}
