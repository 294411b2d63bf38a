package index

import (
	"errors"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// While a rank is being dropped, because it came back with another number of pages or is forgotten, readers go on asking. Whoever
// is sent to a page of it meanwhile is honoured: by this index, and by one that reads the log.
func TestReadersWhileARankIsDropped(t *testing.T) {
	for name, drop := range map[string]func(*Index) error{
		"with another number of pages": func(x *Index) error {
			_, err := x.Initialize(ctx, modelSpace, 0, pageservice.RankOptions{NumPages: 2})
			return err
		},
		"forgotten": func(x *Index) error { return x.Forget(ctx, modelSpace, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			var commit func() error
			disk := journal.Options{Commit: func(c func() error) error {
				if commit != nil {
					if err := commit(); err != nil {
						return err
					}
				}
				return c()
			}}
			o := Options{Now: clock.now}
			o.Options = o.WithDefaults()
			dir := t.TempDir()
			x, err := openWith(dir, disk, o)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = x.Close() }()
			mustInitialize(t, x, 1)
			mustSave(t, x, "a")
			clock.advance(time.Hour)

			sent := pageservice.None
			locate := func() {
				t.Helper()
				at, err := x.Locate(ctx, modelSpace, 0, []string{"a"})
				if err != nil {
					t.Fatal(err)
				}
				sent = at[0]
			}
			diskFull := errors.New("disk full")
			commit = func() error { locate(); return diskFull }
			if err := drop(x); !errors.Is(err, diskFull) {
				t.Fatal(err)
			}
			commit = nil
			if locate(); sent == pageservice.None {
				t.Fatal("a key is not found whose rank could not be dropped")
			}
			clock.advance(time.Hour)

			commit = func() error { locate(); return nil }
			if err := drop(x); err != nil {
				t.Fatal(err)
			}
			commit = nil
			for _, life := range []string{"at once", "after a restart"} {
				mustInitialize(t, x, 2)
				grants, err := x.Reserve(ctx, modelSpace, 0, []string{"b", "c"}, false)
				if err != nil {
					t.Fatal(err)
				}
				if sent != pageservice.None && (grants[0].Page == sent || grants[1].Page == sent) {
					t.Fatalf("%s page %d is given to a writer, and a reader was just sent there", life, sent)
				}
				if err := errors.Join(x.Check(), x.Close()); err != nil {
					t.Fatal(err)
				}
				if x, err = openWith(dir, disk, o); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// That no client uses the pages of ranks which were forgotten long ago must not be logged behind a rank that is being forgotten.
func TestForgottenWhileAnOlderOneIsOver(t *testing.T) {
	clock := newClock()
	var commit func()
	disk := journal.Options{Commit: func(c func() error) error {
		if commit != nil {
			commit()
		}
		return c()
	}}
	o := Options{Now: clock.now}
	dir := t.TempDir()
	x, err := openWith(dir, disk, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.Close() }()
	mustInitialize(t, x, 1)
	if _, err := x.Initialize(ctx, modelSpace, 1, pageservice.RankOptions{NumPages: 1}); err != nil {
		t.Fatal(err)
	}
	if err := x.Forget(ctx, modelSpace, 1); err != nil {
		t.Fatal(err)
	}
	mustSave(t, x, "a")
	x.find(modelSpace).close(1) // as if it had just been over
	clock.advance(time.Second)
	if at, err := x.Locate(ctx, modelSpace, 0, []string{"a"}); err != nil || at[0] != 0 {
		t.Fatal(at, err)
	}
	commit = func() {
		commit = nil
		if _, err := x.Reserve(ctx, pageservice.Space{Namespace: "none"}, 0, nil, true); !errors.Is(err, pageservice.ErrUnknownRank) {
			t.Error(err)
		}
	}
	if err := x.Forget(ctx, modelSpace, 0); err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if x, err = openWith(dir, disk, o); err != nil {
		t.Fatal(err)
	}
	mustInitialize(t, x, 1)
	if page := reserveOne(t, x, "b"); page != pageservice.None {
		t.Fatalf("page %d is given to a writer, and a reader was just sent there", page)
	}
}
