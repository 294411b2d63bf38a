package table

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var config = Config{
	Layout:        kv.Layout{BlockBytes: 3 * 1024, ShardBytes: 1024},
	Namespace:     kv.Fingerprint{1, 2, 3},
	CapacityBytes: 32 * 4096,
	LockWait:      5 * time.Second,
	Grace:         time.Minute,
	Verify:        true,
}

func key(n int) kv.Key {
	var k kv.Key
	binary.LittleEndian.PutUint32(k[:], uint32(n))
	return k
}

func private(t testing.TB, c Config) *Table {
	table, err := Private(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Unmap)
	return table
}

func name(t testing.TB) string {
	n := "kv3fs-test-" + wire.NewUUID().String()
	t.Cleanup(func() { os.Remove(filepath.Join(shm.Dir, n)) })
	return n
}

func join(t testing.TB, name string, c Config) *Table {
	t.Helper()
	table, err := Open(name, c, true)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// die ends a member as a kill does: the kernel closes its files.
func die(t *Table) { t.Unmap() }

func do(t testing.TB, table *Table, fn func()) {
	t.Helper()
	if err := table.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// check compares what the index finds with what the slots say.
func check(t rapid.TB, table *Table, want map[kv.Key]int32) {
	t.Helper()
	for n := range 64 {
		slot, ok := table.Find(key(n))
		wanted, there := want[key(n)]
		if ok != there || ok && slot != wanted {
			t.Fatalf("key %d: slot %d, %v; want %d, %v", n, slot, ok, wanted, there)
		}
	}
}

// The index behaves as a map, also after a rebuild.
func TestIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, err := Private(config)
		if err != nil {
			t.Fatal(err)
		}
		defer table.Unmap()
		want := map[kv.Key]int32{}
		free := map[int32]bool{}
		for slot := range int32(32) {
			free[slot] = true
		}
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				k := key(rapid.IntRange(0, 63).Draw(t, "key"))
				slot := rapid.Int32Range(0, 31).Draw(t, "slot")
				if _, there := want[k]; there || !free[slot] {
					t.Skip()
				}
				if table.Head(slot).State == Lost {
					table.Become(slot, Free)
				}
				table.Claim(slot, k, Loading, 1, 1)
				want[k], free[slot] = slot, false
			},
			"free": func(t *rapid.T) {
				k := key(rapid.IntRange(0, 63).Draw(t, "key"))
				slot, there := want[k]
				if !there {
					t.Skip()
				}
				table.Become(slot, rapid.SampledFrom([]State{Free, Lost}).Draw(t, "state"))
				delete(want, k)
				free[slot] = true
			},
			"rebuild": func(*rapid.T) { table.rebuild() },
			"":        func(t *rapid.T) { check(t, table, want) },
		})
	})
}

func TestVictims(t *testing.T) {
	table := private(t, config)
	for n := range 32 {
		table.Claim(int32(n), key(n), Saving, 1, int64(100+n))
		table.Become(int32(n), Dirty)
		if n >= 8 {
			table.Become(int32(n), Unsaved)
		}
	}
	table.Touch(9, 1000)
	table.Pin(10)
	table.Become(20, Free)
	var got []int32
	for _, v := range table.Victims(LRU, 6) {
		got = append([]int32{v.Slot}, got...)
	}
	want := []int32{20, 8, 11, 12, 13, 14}
	if len(got) != len(want) {
		t.Fatalf("victims %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("victims %v, want %v", got, want)
		}
	}
	all := table.Victims(LRU, 100)
	table.Touch(8, 2000)
	table.Pin(12)
	for _, v := range all {
		_, ok := table.Evict(v)
		if ok != (v.Slot != 8 && v.Slot != 12) {
			t.Errorf("slot %d: evicted %v", v.Slot, ok)
		}
	}
}

// In a large table each search looks at a few slots, and in the end all were looked at.
func TestVictimsOfMany(t *testing.T) {
	c := config
	c.CapacityBytes = 3 * lookAt * 4096
	table := private(t, c)
	looked := map[int32]bool{}
	count := func(h Head) int64 { looked[int32(h.UsedAt)] = true; return h.UsedAt }
	for slot := range int32(3 * lookAt) {
		table.Claim(slot, key(int(slot)), Loading, 1, int64(slot))
		table.Become(slot, Clean)
	}
	for round := range int32(4) {
		clear(looked)
		victims := table.Victims(count, 2)
		first := round % 3 * lookAt
		if len(looked) != lookAt || victims[1].Slot != first || victims[0].Slot != first+1 {
			t.Errorf("round %d: %v, after a look at %d slots", round, victims, len(looked))
		}
	}
	last := int32(3*lookAt - 1)
	for slot := range last {
		table.Pin(slot)
	}
	if v := table.Victims(LRU, 2); len(v) != 1 || v[0].Slot != last {
		t.Errorf("the only one that can be had: %v", v)
	}
	table.Pin(last)
	if v := table.Victims(LRU, 2); len(v) != 0 {
		t.Errorf("none can be had: %v", v)
	}
}

// By "aged" a block that was used again stays longer than one that was used later.
func TestAged(t *testing.T) {
	second := int64(time.Second)
	table := private(t, config)
	for n := range int32(2) {
		table.Claim(n, key(int(n)), Saving, 1, 0)
		table.Become(n, Dirty)
		table.Become(n, Unsaved)
	}
	for at := range int64(10) {
		table.Touch(0, (at+1)*2*second)
	}
	table.Touch(1, 400*second)
	if u := table.Head(0).Uses; u != mostUses {
		t.Errorf("%d uses count", u)
	}
	for policy, want := range map[string]int32{"aged": 1, "lru": 0} {
		p := map[string]Policy{"aged": Aged, "lru": LRU}[policy]
		v := table.Victims(p, 100)
		var order []int32
		for i := len(v) - 1; i >= 0; i-- {
			if v[i].Slot < 2 {
				order = append(order, v[i].Slot)
			}
		}
		if order[0] != want {
			t.Errorf("%s: order %v", policy, order)
		}
	}
}

func TestSums(t *testing.T) {
	table := private(t, config)
	table.Claim(3, key(1), Saving, 1, 1)
	table.Claim(4, key(2), Saving, 1, 1)
	src, dst := make([]byte, 1024), make([]byte, 1024)
	for slot, k := range map[int32]kv.Key{3: key(1), 4: key(2)} {
		for i := range 3 {
			if _, err := table.Write(slot, k, i, src); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := table.Count(3); n != 3 {
		t.Errorf("%d shards", n)
	}
	if _, err := table.Read(dst, 3, key(1), 2); err != nil {
		t.Error(err)
	}
	// The same bytes of another block or another shard are not this shard.
	table.m.StoreUint64(table.sumAt(3, 0), table.m.LoadUint64(table.sumAt(4, 0)))
	table.m.StoreUint64(table.sumAt(3, 1), table.m.LoadUint64(table.sumAt(3, 2)))
	for i := range 2 {
		if _, err := table.Read(dst, 3, key(1), i); !errors.Is(err, ErrDamaged) {
			t.Errorf("shard %d: %v", i, err)
		}
	}
	table.Shard(4, 1)[17] ^= 4
	if _, err := table.Read(nil, 4, key(2), 1); !errors.Is(err, ErrDamaged) {
		t.Errorf("a flipped bit: %v", err)
	}
}

// The others take over what a dead member had. They write its dirty blocks. Its pins are
// gone and its slots free; those that its storage may still write into are free after
// the grace period.
func TestDeath(t *testing.T) {
	n := name(t)
	dead, live := join(t, n, config), join(t, n, config)
	do(t, dead, func() {
		for slot, s := range map[int32]State{0: Loading, 1: Saving, 2: Dirty, 3: Clean, 4: Lost} {
			claimed := Loading
			if s == Saving || s == Dirty {
				claimed = Saving
			}
			dead.Claim(slot, key(int(slot)), claimed, 1, 1)
			for i := range 3 {
				dead.put(slot, i, 0)
			}
			if s != claimed {
				dead.Become(slot, s)
			}
			dead.Pin(slot)
		}
	})
	do(t, live, func() {
		if live.Reclaim(1000) {
			t.Error("a live member was found dead")
		}
	})
	die(dead)
	at := int64(time.Hour)
	do(t, live, func() {
		if !live.Reclaim(at) {
			t.Fatal("no member was found dead")
		}
		for slot, want := range map[int32]State{0: Lost, 1: Free, 2: Dirty, 3: Clean, 4: Lost} {
			if h := live.Head(slot); h.State != want || h.Pinned || h.Mine != (want == Dirty) {
				t.Errorf("slot %d: %+v, want %d", slot, h, want)
			}
		}
		if _, ok := live.Find(key(0)); ok {
			t.Error("a lost block is found")
		}
		if mine := live.Mine(); len(mine) != 1 {
			t.Errorf("dirty: %v", mine)
		}
		live.Reclaim(at + int64(time.Minute))
		for _, slot := range []int32{0, 4} {
			if h := live.Head(slot); h.State != Free {
				t.Errorf("slot %d after the grace: %+v", slot, h)
			}
		}
	})
	if err := live.Leave(); err != nil {
		t.Error(err)
	}
	live.Unmap()
	if _, err := os.Stat(filepath.Join(shm.Dir, n)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the last one has left the object: %v", err)
	}
}

// A table works after a process was killed in the middle of a change.
func TestDeathInTheTable(t *testing.T) {
	n := name(t)
	dead, live := join(t, n, config), join(t, n, config)
	defer die(live)
	do(t, dead, func() {
		for slot := range int32(20) {
			dead.Claim(slot, key(int(slot)), Saving, 1, 1)
			for i := range 3 {
				dead.put(slot, i, 0)
			}
			dead.Become(slot, Dirty)
			dead.Become(slot, Clean)
		}
	})
	// Two slots of one key, a block that is not whole, an invalid state, and an index
	// full of nonsense.
	dead.m.StoreUint64(changingAt, 1)
	for i := range int64(2) {
		dead.m.StoreUint64(dead.headAt(5)+i*8, dead.m.LoadUint64(dead.headAt(4)+i*8))
	}
	dead.m.StoreUint64(dead.bitsAt(6), 3)
	dead.setMode(7, newMode(Lost+1, 0, 0, 1))
	for i := range uint32(dead.p.buckets) {
		dead.m.StoreUint64(dead.bucketAt(i), uint64(i)*0x1234567812345)
	}
	die(dead)
	do(t, live, func() {
		live.Reclaim(Now())
		for slot := range int32(20) {
			got, ok := live.Find(key(int(slot)))
			if gone := slot == 5 || slot == 6 || slot == 7; ok == gone || ok && got != slot {
				t.Errorf("block %d: slot %d, %v", slot, got, ok)
			}
		}
		for slot := int32(5); slot < 8; slot++ {
			if s := live.Head(slot).State; s != Free {
				t.Errorf("slot %d: %d", slot, s)
			}
		}
	})
}

// Blocks survive when all processes that share them are killed. They are removed when the
// last process closes the cache.
func TestBlocksOutliveTheKilled(t *testing.T) {
	n := name(t)
	dead := join(t, n, config)
	do(t, dead, func() {
		dead.Claim(9, key(1), Saving, 1, 1)
		for i := range 3 {
			dead.put(9, i, 0)
		}
		dead.Become(9, Dirty)
	})
	die(dead)
	live := join(t, n, config)
	do(t, live, func() {
		if slot, ok := live.Find(key(1)); !ok || slot != 9 || !live.Head(9).Mine {
			t.Errorf("slot %d, %v, %+v", slot, ok, live.Head(9))
		}
	})
	if err := live.Leave(); err != nil {
		t.Error(err)
	}
	live.Unmap()
}

func TestObjectsThatAreNotOurs(t *testing.T) {
	n := name(t)
	first := join(t, n, config)
	defer die(first)
	other := config
	other.Layout.ShardBytes = 512
	if _, err := Open(n, other, true); err == nil {
		t.Error("joined with another layout")
	}
	other = config
	other.Namespace[0]++
	if _, err := Open(n, other, true); err == nil {
		t.Error("joined with another namespace")
	}
	more := config
	more.CapacityBytes *= 2
	second := join(t, n, more)
	if second.Slots() != first.Slots() {
		t.Error("the second process decides the size")
	}
	die(second)

	for what, content := range map[string][]byte{"text": []byte("hello"), "page": make([]byte, 8192)} {
		n := name(t)
		if what == "page" {
			content[0] = 1
		}
		if err := os.WriteFile(filepath.Join(shm.Dir, n), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if table, err := Open(n, config, true); err == nil {
			t.Errorf("joined %s", what)
			die(table)
		}
	}
}

// A table whose creator was killed before it was done is made again.
func TestHalfMade(t *testing.T) {
	n := name(t)
	if err := os.WriteFile(filepath.Join(shm.Dir, n), make([]byte, 100*4096), 0o600); err != nil {
		t.Fatal(err)
	}
	table := join(t, n, config)
	do(t, table, func() { table.Claim(31, key(1), Loading, 1, 1) })
	die(table)
}

// A wait for a stopped process that holds the table's lock is bounded.
func TestLockIsBounded(t *testing.T) {
	n := name(t)
	c := config
	c.LockWait = 20 * time.Millisecond
	stopped, live := join(t, n, c), join(t, n, c)
	defer die(live)
	if ok, err := tryLock(stopped.fd, tableLock); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for range 3 {
		if err := live.Do(func() { t.Error("in the table") }); err == nil || errors.Is(err, ErrBroken) {
			t.Errorf("%v", err)
		}
	}
	die(stopped)
	do(t, live, func() {})
	if !live.noWaitUntil.IsZero() {
		t.Error("it found the lock free, and still does not wait for it again")
	}
}

func TestShrunken(t *testing.T) {
	for _, left := range []int64{0, 4096, 40 * 4096} {
		n := name(t)
		table := join(t, n, config)
		do(t, table, func() { table.Claim(31, key(1), Saving, 1, 1) })
		if err := unix.Truncate(filepath.Join(shm.Dir, n), left); err != nil {
			t.Fatal(err)
		}
		if _, err := table.Write(31, key(1), 0, make([]byte, 1024)); !errors.Is(err, ErrBroken) {
			t.Errorf("%d bytes left: write: %v", left, err)
		}
		if err := table.Do(func() { t.Error("in the table") }); !errors.Is(err, ErrBroken) {
			t.Errorf("%d bytes left: %v", left, err)
		}
		table.Shard(31, 0)[0] = 1 // no fault any more
		if err := table.Leave(); err != nil {
			t.Error(err)
		}
		table.Unmap()
		if _, err := os.Stat(filepath.Join(shm.Dir, n)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a useless object is left: %v", err)
		}
	}
}

// The memory of a killed process comes back when the next one starts.
func TestSweep(t *testing.T) {
	prefix := name(t) + "-"
	path := func(n string) string { return filepath.Join(shm.Dir, prefix+n) }
	var tables []*Table
	for _, n := range []string{"dead", "live"} {
		table, err := Open(prefix+n, config, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(path(n)) })
		tables = append(tables, table)
	}
	Sweep(prefix)
	if _, err := os.Stat(path("dead")); err != nil {
		t.Fatalf("swept while it is in use: %v", err)
	}
	die(tables[0])
	Sweep(prefix)
	if _, err := os.Stat(path("dead")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what the dead left is still there: %v", err)
	}
	if _, err := os.Stat(path("live")); err != nil {
		t.Errorf("swept while it is in use: %v", err)
	}
	if err := tables[1].Leave(); err != nil {
		t.Error(err)
	}
	tables[1].Unmap()
}

// A block that was deleted while its owner had yet to write it does not come back when
// the owner leaves.
func TestLeaveWithADoomedBlock(t *testing.T) {
	n := name(t)
	first, other := join(t, n, config), join(t, n, config)
	do(t, first, func() {
		for slot := range int32(2) {
			first.Claim(slot, key(int(slot)), Saving, 1, 0)
			first.Become(slot, Dirty)
		}
	})
	do(t, other, func() { other.Doom(0) })
	if err := first.Leave(); err != nil {
		t.Fatal(err)
	}
	first.Unmap()
	do(t, other, func() {
		if keys, _ := other.Keys(0, other.Slots()); len(keys) != 1 || keys[0] != key(1) {
			t.Errorf("listed: %v", keys)
		}
		if s := other.Head(0).State; s != Free {
			t.Errorf("the deleted block's slot is in state %d", s)
		}
	})
	if err := other.Leave(); err != nil {
		t.Error(err)
	}
	other.Unmap()
}
