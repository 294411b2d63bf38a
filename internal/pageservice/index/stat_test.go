package index

import (
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Stat counts leased keys in several steps, and each key once.
func TestEveryLeasedKeyIsCountedOnce(t *testing.T) {
	clock := time.Unix(1_800_000_000, 0)
	b, err := open(t.TempDir(), Options{Now: func() time.Time { return clock }})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const n = 2*searchBound + 10
	s := b.findOrCreate(modelSpace)
	r := s.addRank(0)
	r.numPages = n
	s.recount()
	for i := range uint32(n) {
		key := string(rune(i + 1))
		id := s.newEntry(hashOf(key), key)
		r.use(i)
		s.attach(r, id, i)
		if i%2 == 0 {
			s.entries.at(id).extend(int64(b.o.Lease))
		}
	}
	for _, want := range []int64{n / 2, 0} {
		states, err := b.Stat(ctx)
		if err != nil || states[0].Leased != want || states[0].Keys != n {
			t.Fatalf("%+v %v, want %d leased", states, err, want)
		}
		clock = clock.Add(b.o.Lease + pageservice.Options{}.WithDefaults().Quarantine)
	}
}
