package inventory_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// grouped is an inventory whose files have the group "o" and their names as models.
func grouped(t *testing.T) (v *inventory.Inventory, key func(i int) inventory.Key) {
	v, err := inventory.New(t.TempDir(), inventory.Options{Kind: func(path string) (inventory.Kind, inventory.Group) {
		return inventory.Entry, inventory.Group{Owner: "o", Model: filepath.Base(path)}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v, func(i int) inventory.Key { return inventory.Key{Dev: v.KeyOf(v.Root()).Dev, Ino: uint64(1<<50 + i)} }
}

func byModel(v *inventory.Inventory, d *inventory.Directory) map[string]inventory.Total {
	all := map[string]inventory.Total{}
	for _, is := range v.Groups(d) {
		all[is.Model] = is
	}
	return all
}

// What directories, owners and models take is known without a look at any file, however many there are: it is what "kv3fs du" prints.
func TestTotalsNeedNoFiles(t *testing.T) {
	v, key := grouped(t)
	root, dir := v.KeyOf(v.Root()), key(1)
	v.Created(dir, root, "dir", true)
	const files, models = 500, 7
	for i := range files {
		v.Created(key(2+i), dir, fmt.Sprint("m", i%models), false)
		v.Settle(key(2+i), 0, 8)
	}
	d, _ := v.Directory(dir)
	v.WithoutFiles(func() {
		for _, top := range []*inventory.Directory{v.Root(), d} {
			got := byModel(v, top)
			n := int64(0)
			for _, is := range got {
				n += is.Files
			}
			if len(got) != models || n != files {
				t.Errorf("%d models of %d files", len(got), n)
			}
			if top.Files() != files || top.Bytes() < files*8*512 {
				t.Errorf("%d files of %d bytes", top.Files(), top.Bytes())
			}
		}
		branches, shares, ok := v.Breakdown(".", 1, 10)
		if !ok || len(branches) != 2 || len(shares) != models {
			t.Errorf("%v: %v, %v", ok, branches, shares)
		}
	})
}

// Groups follow files as they grow, are renamed, moved and removed, below each directory.
func TestGroups(t *testing.T) {
	v, key := grouped(t)
	root, dir := v.KeyOf(v.Root()), key(1)
	want := func(d *inventory.Directory, want map[string]int64) {
		t.Helper()
		got := byModel(v, d)
		for model, blocks := range want {
			if is := got[model]; is.Files != 1 || is.Bytes != 512*blocks || is.Owner != "o" {
				t.Errorf("model %q: %+v; want %d blocks", model, is, blocks)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%v; want %v", got, want)
		}
	}
	v.Created(dir, root, "dir", true)
	d, _ := v.Directory(dir)
	v.Created(key(2), root, "a", false)
	v.Created(key(3), dir, "b", false)
	v.Settle(key(2), 0, 8)
	v.Settle(key(3), 0, 16)
	want(v.Root(), map[string]int64{"a": 8, "b": 16})
	want(d, map[string]int64{"b": 16})
	v.Renamed(key(2), root, "a", dir, "c")
	v.Settle(key(2), 0, 24)
	want(d, map[string]int64{"b": 16, "c": 24})
	v.Opened(key(3), dir, "b")
	v.Removed(key(3), dir, "b", true)
	want(d, map[string]int64{"c": 24})
	if v.Root().Files() != 2 {
		t.Errorf("%d files; want the one that is open, too", v.Root().Files())
	}
	v.Created(key(3), root, "d", false) // it has a name again
	want(v.Root(), map[string]int64{"c": 24, "d": 16})
	v.Closed(key(3), 32)
	want(v.Root(), map[string]int64{"c": 24, "d": 32})
	v.Removed(key(2), dir, "c", true)
	v.Removed(dir, root, "dir", true)
	want(v.Root(), map[string]int64{"d": 32})
}

// Names are what clients make them: so many groups are told apart, and others count as their owner's. Those whose
// files have gone make room for new ones.
func TestManyGroups(t *testing.T) {
	const most, many = 10000, 13000
	v, key := grouped(t)
	root := v.KeyOf(v.Root())
	for round := range 3 {
		name := func(i int) string { return fmt.Sprintf("r%d-%d", round, i) }
		for i := range many {
			v.Created(key(i), root, name(i), false)
			v.Settle(key(i), 0, 1)
		}
		got, files := byModel(v, v.Root()), int64(0)
		for _, is := range got {
			files += is.Files
		}
		if len(got) != most+1 || got[""].Files != many-most || files != many {
			t.Errorf("round %d: %d groups of %d files, %+v", round, len(got), files, got[""])
		}
		for i := range most - 100 {
			if is := got[name(i)]; is.Files != 1 || is.Bytes != 512 {
				t.Fatalf("round %d: %+v", round, is)
			}
		}
		for i := range many {
			v.Removed(key(i), root, name(i), true)
		}
		if got := v.Groups(v.Root()); len(got) != 0 {
			t.Errorf("%v are left", got)
		}
	}
}

// Of groups that have gone from a directory nothing stays, however few there are at a time.
func TestGroupsThatCameAndWent(t *testing.T) {
	const rounds, dirs, many = 4, 3, 2400 // groups in all: fewer than are told apart
	v, key := grouped(t)
	root := v.KeyOf(v.Root())
	for d := range dirs {
		v.Created(key(d), root, fmt.Sprint(d), true)
	}
	stays := key(dirs)
	v.Created(stays, key(0), "stays", false)
	v.Settle(stays, 0, 8)
	for round := range rounds {
		each := func(fn func(k, dir inventory.Key, name string)) {
			for i := range dirs * many {
				fn(key(10+i), key(i%dirs), fmt.Sprintf("r%d-%d", round, i/dirs))
			}
		}
		each(func(k, dir inventory.Key, name string) { v.Created(k, dir, name, false) })
		if got := v.Places(); got > 1+dirs*many {
			t.Errorf("round %d: %d places for %d files", round, got, 1+dirs*many)
		}
		each(func(k, dir inventory.Key, name string) { v.Removed(k, dir, name, true) })
	}
	v.Created(key(10), root, "last", false)
	if got := v.Places(); got > 2 {
		t.Errorf("%d places for 2 files", got)
	}
	if all := byModel(v, v.Root()); len(all) != 2 || all["stays"].Bytes != 8*512 || all["last"].Files != 1 {
		t.Errorf("%v", all)
	}
}
