package files_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// listed returns the keys that a store yields, sorted.
func listed(t testing.TB, s kv.Store) []kv.Key {
	t.Helper()
	var all []kv.Key
	for k, err := range s.Keys(t.Context()) {
		must(t, err)
		all = append(all, k)
	}
	return sorted(all)
}

func sorted(all []kv.Key) []kv.Key {
	slices.SortFunc(all, func(a, b kv.Key) int { return strings.Compare(a.String(), b.String()) })
	return all
}

func lists(t testing.TB, s kv.Store, want ...kv.Key) {
	t.Helper()
	if got := listed(t, s); !slices.Equal(got, sorted(want)) {
		t.Errorf("%d keys are listed: %s; want %d: %s", len(got), got, len(want), want)
	}
}

// misses checks that a block is not there, in any way.
func misses(t testing.TB, s kv.Store, k kv.Key) {
	t.Helper()
	if _, err := load(t, s, k); err != kv.ErrMiss || has(t, s, k) {
		t.Errorf("a deleted block: found %v, loaded with %v", has(t, s, k), err)
	}
}

func TestDelete(t *testing.T) {
	dir := t.TempDir()
	s, other := open(t, in(dir)), open(t, in(dir))
	must(t, save(t, s, 0, keys(20)...))
	for _, k := range keys(20) {
		loads(t, s, k, 0) // its file stays open
		loads(t, other, k, 0)
	}
	lists(t, s, keys(20)...)
	must(t, s.Delete(t.Context(), append(keys(10), key(100))))
	must(t, s.Flush(t.Context()))
	for i, k := range keys(20) {
		if i >= 10 {
			loads(t, s, k, 0)
			continue
		}
		misses(t, s, k)
		if has(t, other, k) {
			t.Error("another process finds a deleted block")
		}
	}
	lists(t, s, keys(20)[10:]...)
	must(t, s.Delete(t.Context(), keys(10)))
	must(t, s.Delete(t.Context(), nil))

	// Every process verifies a block that is saved again in another variant.
	must(t, save(t, s, 1, keys(10)...))
	fresh := open(t, in(dir))
	for _, k := range keys(10) {
		loads(t, s, k, 1)
		loads(t, fresh, k, 1)
	}
	lists(t, fresh, keys(20)...)
	if a, b := s.Stats(), fresh.Stats(); a.UnverifiedShards+b.UnverifiedShards+a.CorruptBlocks+b.CorruptBlocks != 0 {
		t.Errorf("%+v %+v", a, b)
	}
}

// UCM may write a block again once it is deleted. No process checks it against the earlier
// checksums, not even one that has not read yet that they are void.
func TestUCMWritesAfterDelete(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	must(t, save(t, s, 0, key(1)))
	other := open(t, in(dir))
	if !has(t, other, key(1)) { // and so knows the record
		t.Fatal("not found")
	}
	must(t, s.Delete(t.Context(), keys(2)))
	ucmWrites(t, dir, key(1), content(key(1), 7))
	for _, s := range []*files.Store{other, s} {
		loads(t, s, key(1), 7)
		if st := s.Stats(); st.CorruptBlocks != 0 || st.UnverifiedShards != int64(layout.Shards()) {
			t.Errorf("%+v", st)
		}
	}
}

// Blocks of which the store's namespace has no record are neither deleted nor listed.
func TestDeleteLeavesWhatIsNotOurs(t *testing.T) {
	dir := t.TempDir()
	s := open(t, in(dir))
	must(t, save(t, s, 0, key(1)))
	ucmWrites(t, dir, key(2), content(key(2), 0))
	err := s.Delete(t.Context(), []kv.Key{key(2), key(1)})
	if err == nil || !strings.Contains(err.Error(), ucmPath(dir, key(2))) {
		t.Errorf("the error about a block of UCM: %v", err)
	}
	loads(t, s, key(2), 0)
	misses(t, s, key(1))
	lists(t, s)

	// A store that requires checksums does not find it at all.
	o := in(dir)
	o.Checksums = kv.ChecksumsRequire
	must(t, open(t, o).Delete(t.Context(), []kv.Key{key(2)}))
	loads(t, s, key(2), 0)

	// Blocks of other namespaces, of the same size and of another one.
	same, small := in(dir), in(dir)
	same.Namespace, small.Namespace = kv.Fingerprint{1}, kv.Fingerprint{2}
	small.Layout = kv.Layout{BlockBytes: 1000, ShardBytes: 1000}
	theirs, others := open(t, same), open(t, small)
	must(t, save(t, theirs, 0, key(3)))
	task, err := others.Save(t.Context(), []kv.Shard{{Key: key(4), Buf: make([]byte, 1000)}})
	must(t, err)
	must(t, task.Wait(t.Context()))
	must(t, s.Delete(t.Context(), []kv.Key{key(3), key(4)}))
	loads(t, theirs, key(3), 0)
	if !has(t, others, key(4)) {
		t.Error("a block of another size is deleted")
	}
	lists(t, theirs, key(3))
	lists(t, others, key(4))
	lists(t, s)
}

// Two namespaces have recorded one key: the checksums say whose the block is.
func TestDeleteOfAKeyOfTwoNamespaces(t *testing.T) {
	for _, ours := range []bool{true, false} {
		dir := t.TempDir()
		o := in(dir)
		o.Namespace = kv.Fingerprint{1}
		s, other := open(t, in(dir)), open(t, o)
		first, second := s, other
		if ours {
			first, second = other, s
		}
		must(t, save(t, first, 1, key(1)))
		must(t, os.Remove(ucmPath(dir, key(1)))) // evicted by a cleaner, and still recorded
		must(t, save(t, second, 2, key(1)))
		must(t, s.Delete(t.Context(), keys(2)))
		misses(t, s, key(1))
		lists(t, s)
		if _, err := os.Stat(ucmPath(dir, key(1))); errors.Is(err, os.ErrNotExist) != ours {
			t.Errorf("the block is ours: %v; after Delete: %v", ours, err)
		}
		if !ours {
			fresh := open(t, o)
			loads(t, fresh, key(1), 2)
			if n := fresh.Stats().UnverifiedShards; n != 0 {
				t.Errorf("%d shards have lost their checksums", n)
			}
		}
	}
}

func TestKeys(t *testing.T) {
	for digits := range 6 {
		o := in(t.TempDir(), t.TempDir(), t.TempDir())
		o.DirShardDigits = &digits
		s := open(t, o)
		must(t, save(t, s, 0, keys(700)...))
		lists(t, s, keys(700)...)
		if digits != 3 {
			continue
		}
		// A block that is in two directories, both recorded, is listed once.
		all := in(o.Dirs[1:]...)
		must(t, save(t, open(t, all), 0, keys(700)...))
		lists(t, s, keys(700)...)
		// Other files beside the blocks are not listed.
		k := key(0).String()
		must(t, os.MkdirAll(filepath.Join(o.Dirs[0], k[:3]), 0o775))
		for _, name := range []string{"x", strings.ToUpper(k), k[:31], k + ".tmp"} {
			must(t, os.WriteFile(filepath.Join(o.Dirs[0], k[:3], name), content(key(0), 0), 0o644))
		}
		for _, dir := range o.Dirs {
			_ = os.Remove(ucmPath(dir, key(0)))
		}
		lists(t, s, keys(700)[1:]...)
		// A whole namespace is purged like this.
		must(t, s.Delete(t.Context(), listed(t, s)))
		lists(t, s)
	}
}

func TestKeysEndsEarly(t *testing.T) {
	s := open(t, in(t.TempDir()))
	must(t, save(t, s, 0, keys(10)...))
	n := 0
	for _, err := range s.Keys(t.Context()) {
		must(t, err)
		if n++; n == 3 {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ends := func(want error) {
		t.Helper()
		n := 0
		for k, err := range s.Keys(ctx) {
			if n++; n > 1 || k != (kv.Key{}) || !errors.Is(err, want) {
				t.Errorf("%d: %s, %v; want %v", n, k, err, want)
			}
		}
		if n != 1 {
			t.Errorf("%d errors", n)
		}
	}
	cancel()
	ends(context.Canceled)
	if err := s.Delete(ctx, keys(10)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ctx = t.Context()
	for range s.Keys(ctx) { // Close does not wait for this loop
		must(t, s.Close())
		break
	}
	ends(kv.ErrClosed)
	if err := s.Delete(ctx, keys(10)); err != kv.ErrClosed {
		t.Error(err)
	}
}

// A block is saved and deleted at the same time, in one process or in two. In the end it
// is there with its checksums, or not there.
func TestDeleteAgainstSave(t *testing.T) {
	const blocks, rounds = 4, 60
	dir := t.TempDir()
	a, b := open(t, in(dir)), open(t, in(dir))
	o := in(dir)
	o.Checksums = kv.ChecksumsRequire
	strict := open(t, o)
	for round := range rounds {
		var together sync.WaitGroup
		for _, s := range []*files.Store{a, b} {
			together.Go(func() { must(t, save(t, s, 0, keys(blocks)...)) })
			together.Go(func() { must(t, s.Delete(t.Context(), keys(blocks))) })
		}
		together.Wait()
		for i, k := range keys(blocks) {
			if there := has(t, a, k); there != has(t, strict, k) {
				t.Fatalf("round %d: block %d is there %v and with a checksum %v", round, i, there, !there)
			} else if there {
				loads(t, a, k, 0)
			}
		}
	}
	for _, s := range []*files.Store{a, b} {
		if st := s.Stats(); st.CorruptBlocks != 0 || st.UnverifiedShards != 0 {
			t.Errorf("%+v", st)
		}
	}
}

// A process is killed while it deletes blocks. Those that it reported as deleted are
// gone. Every other one is whole and verified, or not there.
func TestKilledWhileDeleting(t *testing.T) {
	const groups = 400
	dir := t.TempDir()
	s := open(t, in(dir))
	for round := range 8 {
		for g := range groups / 4 {
			must(t, saveGroup(s, g, uint64(round)))
		}
		cmd, lines := start(t, dir, deletes, groups/4)
		deleted := -1
		for lines.Scan() {
			g, err := strconv.Atoi(lines.Text())
			if err != nil {
				t.Fatal(lines.Text())
			}
			deleted = g
			if g == 3+5*round {
				must(t, cmd.Process.Signal(syscall.SIGKILL))
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("it was not killed")
		}
		fresh := open(t, in(dir))
		for g := range groups / 4 {
			for _, k := range group(g) {
				switch there := has(t, fresh, k); {
				case g <= deleted:
					misses(t, fresh, k)
				case there:
					loads(t, fresh, k, uint64(round))
				default:
					misses(t, fresh, k)
				}
			}
		}
		if st := fresh.Stats(); st.CorruptBlocks != 0 || st.UnverifiedShards != 0 {
			t.Errorf("%+v", st)
		}
		must(t, fresh.Delete(t.Context(), listed(t, fresh)))
	}
}
