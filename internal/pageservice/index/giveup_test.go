package index

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// A file is given up only once nobody can use its pages. While that is logged nobody finds a key, also if it fails; afterwards
// all pages are free at once, and after a restart no key is there.
func TestGiveUp(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	o := Options{Now: func() time.Time { return now }}
	var commit func(func() error) error
	b, err := openWith(dir, journal.Options{Commit: func(c func() error) error {
		if commit != nil {
			return commit(c)
		}
		return c()
	}}, o)
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{"a", "b"}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	wantInUse := func(why string) {
		t.Helper()
		if err := b.GiveUp(ctx, modelSpace, 0); !errors.Is(err, pageservice.ErrInUse) {
			t.Fatalf("%s: %v", why, err)
		}
	}
	found := func() (n int) {
		t.Helper()
		there, err := b.Exists(ctx, modelSpace, keys)
		check(err)
		for _, is := range there {
			if is {
				n++
			}
		}
		return n
	}
	_, err = b.Initialize(ctx, modelSpace, 0, pageservice.RankOptions{NumPages: 2})
	check(err)
	now = now.Add(time.Hour)
	grants, err := b.Reserve(ctx, modelSpace, 0, keys, true)
	check(err)
	wantInUse("reserved")
	_, err = b.Confirm(ctx, modelSpace, 0, []pageservice.Placed{{Key: "a", Page: grants[0].Page}, {Key: "b", Page: grants[1].Page}}, nil)
	check(err)
	now = now.Add(time.Hour)
	_, err = b.Locate(ctx, modelSpace, 0, keys[:1])
	check(err)
	wantInUse("leased")
	now = now.Add(31 * time.Second)
	wantInUse("in quarantine after a lease")
	now = now.Add(time.Hour)

	if err := b.GiveUp(ctx, modelSpace, 1); !errors.Is(err, pageservice.ErrUnknownRank) {
		t.Fatal(err)
	}
	commit = func(func() error) error {
		if n := found(); n != 0 {
			t.Errorf("%d keys are found while they are being forgotten", n)
		}
		return errors.New("disk full")
	}
	if err := b.GiveUp(ctx, modelSpace, 0); !errors.Is(err, pageservice.ErrUnavailable) {
		t.Fatal(err)
	}
	commit = nil
	if n := found(); n != 2 {
		t.Fatalf("%d keys are found that could not be forgotten", n)
	}
	now = now.Add(time.Hour)
	check(b.GiveUp(context.Background(), modelSpace, 0))
	if n := found(); n != 0 {
		t.Fatalf("%d keys are found that were forgotten", n)
	}
	if grants, err = b.Reserve(ctx, modelSpace, 0, []string{"c", "d"}, true); err != nil || grants[0].Page == pageservice.None || grants[1].Page == pageservice.None {
		t.Fatalf("%v %v, want pages", grants, err)
	}
	check(b.Close())
	if b, err = openWith(dir, journal.Options{}, o); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if n := found(); n != 0 {
		t.Fatalf("%d keys are found after a restart", n)
	}
}

// Hidden keys are not found until they are cleared, also if that fails first. Others that are stored later are.
func TestHide(t *testing.T) {
	var full error
	b, err := openWith(t.TempDir(), journal.Options{Commit: func(commit func() error) error {
		if full != nil {
			return full
		}
		return commit()
	}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	store := func(key string) {
		t.Helper()
		grants, err := b.Reserve(ctx, modelSpace, 0, []string{key}, true)
		check(err)
		_, err = b.Confirm(ctx, modelSpace, 0, []pageservice.Placed{{Key: key, Page: grants[0].Page}}, nil)
		check(err)
	}
	want := func(key string, found bool) {
		t.Helper()
		there, err := b.Exists(ctx, modelSpace, []string{key})
		check(err)
		pages, err := b.Locate(ctx, modelSpace, 0, []string{key})
		check(err)
		list, err := b.List(ctx, modelSpace, "", 1)
		check(err)
		if there[0] != found || (pages[0] != pageservice.None) != found || len(list) > 0 && list[0].Complete != found {
			t.Fatalf("%s: there %v, page %v, listed %v; want %t", key, there, pages, list, found)
		}
	}
	_, err = b.Initialize(ctx, modelSpace, 0, pageservice.RankOptions{NumPages: 4})
	check(err)
	store("a")
	want("a", true)
	b.Hide(modelSpace)
	b.Hide(pageservice.Space{Namespace: "none"})
	want("a", false)
	store("b")
	want("b", false)
	full = errors.New("disk full")
	if err := b.Clear(ctx, modelSpace); !errors.Is(err, pageservice.ErrUnavailable) {
		t.Fatal(err)
	}
	want("a", false)
	full = nil
	check(b.Clear(ctx, modelSpace))
	want("a", false)
	store("c")
	want("c", true)
}
