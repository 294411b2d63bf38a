package index

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

func someRecords() []*record {
	space := pageservice.Space{Namespace: "team", Set: "sglang/kv/3"}
	return []*record{
		{kind: rankSet, space: space, rank: 3, numPages: pageservice.MaxPages, dropped: true, stale: true},
		{kind: rankSet, numPages: 1, closed: true},
		{kind: reserved, space: space, rank: maxRank, pages: []uint32{0, pageservice.MaxPages - 1}, hashes: []uint64{1, 1 << 63}},
		{kind: confirmed, rank: 1, pages: []uint32{7, 8}, keys: []string{"key", ""}},
		{kind: freed, space: space, pages: []uint32{300}},
		{kind: cleared, space: space},
		{kind: forgot, space: space, rank: 3},
	}
}

func TestRecordsSurviveTheirEncoding(t *testing.T) {
	got := &record{}
	for _, want := range someRecords() {
		if err := got.decode(want.encode()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.encode(), want.encode()) || got.kind != want.kind || got.space != want.space ||
			got.rank != want.rank || got.numPages != want.numPages || got.stale != want.stale || got.closed != want.closed ||
			!reflect.DeepEqual(append([]uint32(nil), got.pages...), want.pages) {
			t.Errorf("%+v became %+v", want, got)
		}
	}
}

// A record that decodes encodes to what it says: decode reads nothing that encode drops.
func FuzzRecord(f *testing.F) {
	for _, r := range someRecords() {
		b := r.encode()
		f.Add(b)
		f.Add(b[:len(b)-1])
		f.Add(append(b, 0))
	}
	f.Add([]byte{})
	f.Add([]byte{99})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &record{}
		if r.decode(b) != nil {
			return
		}
		again := &record{}
		if err := again.decode(r.encode()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again.encode(), r.encode()) {
			t.Fatalf("%+v became %+v", r, again)
		}
	})
}
