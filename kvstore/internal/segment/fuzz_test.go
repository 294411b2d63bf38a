package segment

import (
	"bytes"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

func exampleRecord() *record {
	return &record{number: 3, namespace: namespace, generation: 41, layout: small, segmentBytes: 1 << 20}
}

// Every flipped bit of a superblock, a header and an index is noticed.
func TestEveryBitCounts(t *testing.T) {
	index := exampleIndex(3, 2, 41)
	for name, c := range map[string]struct {
		page []byte
		good func() bool
	}{
		"superblock": {page: exampleRecord().encode(superMagic)},
		"header":     {page: exampleRecord().encode(headerMagic)},
		"index":      {page: index},
	} {
		good := func() bool {
			switch name {
			case "index":
				return indexValid(c.page, 3, 2, 41)
			case "header":
				return new(record).decode(headerMagic, c.page) == nil
			}
			return new(record).decode(superMagic, c.page) == nil
		}
		if !good() {
			t.Fatalf("%s is not valid to begin with", name)
		}
		for bit := range len(c.page) * 8 {
			c.page[bit/8] ^= 1 << (bit % 8)
			if good() {
				t.Fatalf("%s: bit %d flipped, and it is accepted", name, bit)
			}
			c.page[bit/8] ^= 1 << (bit % 8)
		}
	}
	if indexValid(index, 4, 2, 41) || indexValid(index, 3, 1, 41) || indexValid(index, 3, 2, 40) {
		t.Error("a page of another place or generation is accepted")
	}
}

func exampleIndex(number uint32, n int, generation uint64) []byte {
	page := make([]byte, pageBytes)
	for i := 0; i < indexSlots; i += 3 {
		setIndexed(page, i, keyOf(i))
	}
	setIndexed(page, 1, kv.Key{})
	sealIndex(page, number, n, generation)
	return page
}

func TestIndexPage(t *testing.T) {
	page := exampleIndex(3, 2, 41)
	for i := range indexSlots {
		key, ok := indexed(page, i)
		want, there := keyOf(i), i%3 == 0
		if i == 1 {
			want, there = kv.Key{}, true
		}
		if ok != there || ok && key != want {
			t.Errorf("slot %d: %s, %t", i, key, ok)
		}
	}
}

func fuzzRecord(f *testing.F, m magic) {
	f.Add(exampleRecord().encode(m))
	f.Add(make([]byte, pageBytes))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var r record
		if r.decode(m, raw) != nil {
			return
		}
		if again := r.encode(m); !bytes.Equal(again[:64], raw[:64]) {
			t.Errorf("% x became % x", raw[:64], again[:64])
		}
		if g, err := newGeometry(r.layout, r.segmentBytes); err == nil {
			if g.slots < 1 || g.slotAt(g.slots) > g.indexAt() || g.indexAt() > g.segmentBytes {
				t.Errorf("%+v: %d slots end at %d, the index begins at %d", g, g.slots, g.slotAt(g.slots), g.indexAt())
			}
		}
	})
}

func FuzzSuperblock(f *testing.F) { fuzzRecord(f, superMagic) }
func FuzzHeader(f *testing.F)     { fuzzRecord(f, headerMagic) }

// FuzzGeometry has sizes that no checksum keeps out.
func FuzzGeometry(f *testing.F) {
	f.Add(int64(2<<20), int64(1<<30))
	f.Add(int64(1), int64(3*pageBytes))
	f.Add(int64(1<<62), int64(1<<40))
	f.Fuzz(func(t *testing.T, blockBytes, segmentBytes int64) {
		if blockBytes <= 0 {
			t.Skip()
		}
		g, err := newGeometry(kv.Layout{BlockBytes: blockBytes, ShardBytes: blockBytes}, segmentBytes)
		if err == nil && (g.slots < 1 || g.slotAt(g.slots) > g.indexAt() || g.indexAt() >= g.segmentBytes) {
			t.Errorf("%+v: slots end at %d, the index begins at %d", g, g.slotAt(g.slots), g.indexAt())
		}
	})
}

func FuzzIndexPage(f *testing.F) {
	f.Add(exampleIndex(3, 2, 41), uint32(3), 2, uint64(41))
	f.Add(make([]byte, pageBytes), uint32(0), 0, uint64(0))
	f.Fuzz(func(t *testing.T, raw []byte, number uint32, n int, generation uint64) {
		if !indexValid(raw, number, n, generation) {
			return
		}
		page := make([]byte, pageBytes)
		for i := range indexSlots {
			if key, ok := indexed(raw, i); ok {
				setIndexed(page, i, key)
			}
		}
		sealIndex(page, number, n, generation)
		if !bytes.Equal(page[:16], raw[:16]) && bytes.Equal(page[16:], raw[16:pageBytes]) {
			t.Error("the same page has another checksum")
		}
	})
}
