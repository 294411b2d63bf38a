package index

import (
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// A confirmation may have to wait in the index for so long that its page was given to a writer of another key, and then to another
// writer of the same key, which has not written it yet. It names only key and page, and must not confirm what that writer has.
func TestConfirmationThatWaitedTooLong(t *testing.T) {
	clock := newClock()
	var meanwhile func()
	o := Options{Now: func() time.Time {
		now := clock.now()
		if f := meanwhile; f != nil {
			meanwhile = nil
			f()
		}
		return now
	}}
	o.Options = o.WithDefaults()
	x, _ := lead(t, nil, o, nil)
	mustInitialize(t, x, 1)
	page := reserveOne(t, x, "a")
	again := func() {
		for _, key := range []string{"b", "a"} {
			clock.advance(o.Reserve + o.Quarantine)
			if got := reserveOne(t, x, key); got != page {
				t.Fatalf("%s got page %d, want %d", key, got, page)
			}
		}
	}
	for name, late := range map[string]func() (pageservice.Confirmed, error){
		"confirmed": func() (pageservice.Confirmed, error) {
			return x.Confirm(ctx, modelSpace, 0, []pageservice.Placed{{Key: "a", Page: page}}, nil)
		},
		"released": func() (pageservice.Confirmed, error) { return x.Confirm(ctx, modelSpace, 0, nil, []int64{page}) },
	} {
		meanwhile = again
		if c, err := late(); err != nil || c != (pageservice.Confirmed{Ignored: 1}) {
			t.Errorf("%s: %+v, %v; want it ignored", name, c, err)
		}
	}
	if found, err := x.Exists(ctx, modelSpace, []string{"a"}); err != nil || found[0] {
		t.Fatal("a key is found that its writer has not confirmed", err)
	}
	if c, err := x.Confirm(ctx, modelSpace, 0, []pageservice.Placed{{Key: "a", Page: page}}, nil); err != nil || c.Keys != 1 {
		t.Fatal(c, err)
	}
}
