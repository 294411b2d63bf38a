package inventory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// uses notes what it is told, and follows the keys that it is given.
type uses struct {
	t       testing.TB
	follows func(key uint64) bool
	left    map[uint64]int
	keys    []uint64 // of followed uses
	told    []string
}

func (u *uses) Follows(key uint64) bool { return u.follows(key) }

func (u *uses) Used(use inventory.Use) {
	what := "read"
	if use.Stored {
		what = "stored"
	}
	if use.Followed {
		u.keys = append(u.keys, use.Key)
		what = fmt.Sprintf("%s %d bytes, use %d", what, use.Bytes, use.Uses)
	}
	u.told = append(u.told, what)
}

func (u *uses) Left(key uint64, uses int) { u.left[key] = uses }

func (u *uses) Back(key uint64) int {
	defer delete(u.left, key)
	return u.left[key]
}

// want checks what was told since the last time.
func (u *uses) want(told ...string) {
	u.t.Helper()
	if !slices.Equal(u.told, told) {
		u.t.Errorf("told %q; want %q", u.told, told)
	}
	u.told = nil
}

// used is an inventory with a clock of its own, whose uses are told.
func used(t *testing.T) (v *inventory.Inventory, u *uses, later func()) {
	u = &uses{t: t, follows: func(uint64) bool { return true }, left: map[uint64]int{}}
	now := time.Duration(0)
	v, err := inventory.New(t.TempDir(), inventory.Options{
		Uses: u, Elapsed: func() time.Duration { return now },
		Kind: func(path string) (inventory.Kind, inventory.Group) {
			if strings.HasSuffix(path, ".tmp") {
				return inventory.Temporary, inventory.Group{}
			}
			return inventory.Entry, inventory.Group{}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v, u, func() { now += time.Second }
}

func TestUses(t *testing.T) {
	v, u, later := used(t)
	root := v.KeyOf(v.Root())
	file := func(i int) inventory.Key { return inventory.Key{Dev: root.Dev, Ino: uint64(1<<50 + i)} }
	write := func(k inventory.Key, name string, blocks int64) {
		v.Created(k, root, name, false)
		v.Opened(k, root, name)
		later()
		v.Read(k) // it reads back what it is writing
		v.Closed(k, blocks)
	}
	write(file(1), "a", 8)
	u.want("stored 4096 bytes, use 1")
	v.Read(file(1))
	u.want() // in the second in which it was stored
	later()
	v.Opened(file(1), root, "a")
	v.Read(file(1))
	v.Read(file(1))
	v.Closed(file(1), -1)
	u.want("read 4096 bytes, use 2")
	later()
	v.Opened(file(1), root, "a") // that it is open is no use
	later()
	v.Removed(file(1), root, "a", true)
	v.Removed(file(1), root, "a", true)
	v.Closed(file(1), -1)
	u.want()

	// It comes back as another file, which is written under another name.
	write(file(2), "a.tmp", 16)
	u.want()
	later()
	v.Renamed(file(2), root, "a.tmp", root, "a")
	u.want("stored 8192 bytes, use 3")
	later()
	v.Read(file(2))
	u.want("read 8192 bytes, use 4")
	if slices.Max(u.keys) != slices.Min(u.keys) {
		t.Errorf("keys %x of one entry", u.keys)
	}

	// Renamed while it is written.
	v.Created(file(3), root, "b.tmp", false)
	v.Opened(file(3), root, "b.tmp")
	v.Renamed(file(3), root, "b.tmp", root, "b")
	u.want()
	v.Closed(file(3), 24)
	u.want("stored 12288 bytes, use 1")

	// A file that got its name late.
	v.Opened(file(4), inventory.Key{}, "")
	v.Created(file(4), root, "c", false)
	v.Closed(file(4), 8)
	u.want("stored 4096 bytes, use 1")

	// One that was found before the event came.
	v.Opened(file(6), root, "e")
	v.Created(file(6), root, "e", false)
	v.Created(file(6), root, "e", false)
	v.Closed(file(6), 8)
	u.want("stored 4096 bytes, use 1")

	// One that was there before.
	v.Opened(file(5), root, "d")
	v.Settle(file(5), 0, 8)
	later()
	v.Read(file(5))
	v.Closed(file(5), -1)
	u.want("read 4096 bytes, use 2")

	// That it is written again renews its last use, and is no further one.
	later()
	if v.Claim(file(5), 4096, false) != nil {
		t.Fatal("no room")
	}
	v.Settle(file(5), 4096, 8)
	u.want()
	if f, _ := v.File(file(5)); f.LastUse != v.Now() || f.Uses != 1 {
		t.Errorf("%+v at %d", f, v.Now())
	}
	if slices.Max(u.keys) == slices.Min(u.keys) {
		t.Errorf("keys %x of several entries", u.keys)
	}
}

// What is not followed is counted; it is followed from the next open on once it is wanted.
func TestUsesOfFilesThatAreNotFollowed(t *testing.T) {
	v, u, later := used(t)
	u.follows = func(uint64) bool { return false }
	root := v.KeyOf(v.Root())
	k := inventory.Key{Dev: root.Dev, Ino: 1 << 50}
	v.Created(k, root, "a", false)
	v.Opened(k, root, "a")
	v.Closed(k, 8)
	later()
	v.Read(k)
	u.want("stored", "read")
	u.follows = func(uint64) bool { return true }
	later()
	v.Read(k)
	v.Opened(k, root, "a")
	later()
	v.Read(k)
	v.Closed(k, -1)
	u.want("read", "read 4096 bytes, use 4")
	u.follows = func(uint64) bool { return false }
	later()
	v.Read(k)
	u.want("read")
	later()
	u.follows = func(uint64) bool { return true }
	v.Read(k)
	u.want("read")
}

// Files that were followed and are not wanted any more do not stay in memory.
func TestFollowedFilesAreSwept(t *testing.T) {
	v, u, later := used(t)
	root := v.KeyOf(v.Root())
	const files = 100_000
	part := uint64(1) // of the keys is followed
	u.follows = func(key uint64) bool { return key%part == 0 }
	for i := range files {
		k := inventory.Key{Dev: root.Dev, Ino: uint64(1<<50 + i)}
		v.Created(k, root, fmt.Sprint(i), false)
		v.Settle(k, 0, 8)
		v.Opened(k, root, fmt.Sprint(i))
		v.Closed(k, -1)
		if i == files/2 {
			part = 2
		}
	}
	if n := v.Followed(); n > files*6/10 {
		t.Errorf("%d of %d files are followed, where one in two is wanted", n, files)
	}
	part, u.told = 64, nil
	later()
	for i := range files {
		v.Read(inventory.Key{Dev: root.Dev, Ino: uint64(1<<50 + i)})
	}
	if n := v.Followed(); n < files/100 || n > files/32 {
		t.Errorf("after a use of each, %d of %d files are followed; want about one in 64", n, files)
	}
	if len(u.told) != files {
		t.Errorf("%d uses of %d files", len(u.told), files)
	}
}
