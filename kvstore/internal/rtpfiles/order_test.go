package rtpfiles

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A number that is no chained key gets no other block's bytes out of a file that another
// program has written, whose name has the first key and the last alone.
func TestNumbersThatAreNotChained(t *testing.T) {
	root := t.TempDir()
	l := testLayout
	write(t, filepath.Join(root, itemPath(0, 4)), content(l, 0, 4))
	s := openTest(t, "RtpLlm", Options{Root: root})
	stranger := prompt(500, 1)[0]

	// It is not found without a prompt, and its own block is found in place of the file's.
	found := make([]bool, 1)
	if err := s.Lookup(t.Context(), []kv.Key{stranger}, found); err != nil || found[0] {
		t.Errorf("found %v, %v", found, err)
	}
	own := content(l, 500, 1)
	saveShards(t, s, l.ByBlock([]kv.Key{stranger}, [][]byte{own}))
	other := []kv.Key{prompt(0, 1)[0], stranger, prompt(2, 1)[0], prompt(3, 1)[0]}
	if _, err := s.LookupPrefix(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, l.BlockBytes)
	task, err := s.Load(t.Context(), l.ByBlock([]kv.Key{stranger}, [][]byte{got}))
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err != nil || !bytes.Equal(got, own) {
		t.Errorf("a block that was saved is loaded from another's place: %v", err)
	}

	// Two prompts that name different blocks for one file cannot both be right.
	for _, order := range [][]int{{0, 1, 2, 3}, {0, 500, 2, 3}, {0, 1, 2, 3}} {
		root := t.TempDir()
		write(t, filepath.Join(root, itemPath(0, 4)), content(l, 0, 4))
		s := openTest(t, "RtpLlm", Options{Root: root})
		count(t, s, 0, 4, 4)
		var asked []kv.Key
		for _, i := range order {
			asked = append(asked, prompt(i, 1)[0])
		}
		n, err := s.LookupPrefix(t.Context(), asked)
		if same := order[1] == 1; err != nil || (n == 4) != same {
			t.Errorf("%v: finds %d, %v", order, n, err)
		} else if !same {
			hits(t, s, 0, 4, false)
			hits(t, s, 500, 1, false)
			count(t, s, 0, 4, 0)
		}
	}
}

// What the store knows of a block shows that it does not follow the one before it in a lookup, as a
// chained key would: then no engine's item is taken for theirs.
func TestNumbersThatFollowOthers(t *testing.T) {
	l := testLayout
	for what, c := range map[string]struct {
		known func(t *testing.T, s *Store, root string) // has blocks 500 to 503
		there bool                                      // blocks 500 to 503, after the lookup
	}{
		"in an engine's item": {func(t *testing.T, s *Store, root string) {
			write(t, filepath.Join(root, itemPath(500, 4)), content(l, 500, 4))
			count(t, s, 500, 4, 4)
		}, false}, // either lookup may be the wrong one
		"in an item of the store's": {func(t *testing.T, s *Store, _ string) { save(t, s, 500, 4) }, true},
		"in another process's": {func(t *testing.T, _ *Store, root string) {
			save(t, openTest(t, "RtpLlm", Options{Root: root}), 500, 4)
		}, true},
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			s := openTest(t, "RtpLlm", Options{Root: root})
			c.known(t, s, root)
			write(t, filepath.Join(root, itemPath(0, 4)), content(l, 0, 4))
			asked := []kv.Key{prompt(0, 1)[0], prompt(501, 1)[0], prompt(600, 1)[0], prompt(3, 1)[0]}
			if n, err := s.LookupPrefix(t.Context(), asked); n != 0 || err != nil {
				t.Errorf("finds %d, %v", n, err)
			}
			hits(t, s, 501, 1, c.there) // fails at the bytes of block 1
			hits(t, s, 600, 1, false)
		})
	}
	// An item that the engine has extended, and one that it has cut otherwise, agree.
	root := t.TempDir()
	s := openTest(t, "RtpLlm", Options{Root: root})
	for _, item := range []span{{0, 4}, {4, 4}, {0, 7}, {0, 12}} {
		write(t, filepath.Join(root, itemPath(item.first, item.n)), content(l, item.first, item.n))
		count(t, s, item.first, item.n, item.n)
	}
	hits(t, s, 0, 12, true)
	save(t, s, 0, 16)
	write(t, filepath.Join(root, itemPath(0, 14)), content(l, 0, 14))
	count(t, s, 0, 17, 16)
	hits(t, s, 0, 16, true)
}

// A deletion ends with the first block that cannot be deleted, and says what is left.
func TestDeleteInOrder(t *testing.T) {
	blocks := prompt(0, 5)
	wrong := errors.New("wrong")
	var deleted []kv.Key
	err := deleteInOrder(t.Context(), blocks, func(_ context.Context, key kv.Key) error {
		if key == blocks[2] {
			return wrong
		}
		deleted = append(deleted, key)
		return nil
	})
	if !slices.Equal(deleted, []kv.Key{blocks[4], blocks[3]}) {
		t.Errorf("deletes %v", deleted)
	}
	if !errors.Is(err, wrong) || !strings.Contains(err.Error(), blocks[2].String()+" and the 2 before it") {
		t.Errorf("says %v", err)
	}
}

// undeletable makes a file undeletable, or skips the test.
func undeletable(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	const immutable = 0x10 // FS_IMMUTABLE_FL
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|immutable)
	}
	if err != nil {
		t.Skipf("no file can be made immutable here: %v", err)
	}
	t.Cleanup(func() { _ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags) })
}

func TestDeleteEndsAtAnUndeletableFile(t *testing.T) {
	for what, c := range map[string]struct {
		store      string
		packBlocks int
		files      []span
		victim     int // of files
	}{
		"items":               {"RtpLlm", 4, []span{{0, 4}, {4, 4}, {8, 4}, {12, 1}}, 1},
		"items of one block":  {"RtpLlm", 1, []span{{0, 1}, {1, 1}, {2, 1}, {3, 1}}, 1},
		"files":               {"Kvcm", 4, []span{{0, 4}, {4, 4}, {8, 4}, {12, 2}}, 1},
		"files of one block":  {"Kvcm", 1, []span{{0, 1}, {1, 1}, {2, 1}}, 1},
		"the last one, alone": {"RtpLlm", 1, []span{{0, 1}, {1, 1}}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			s := openTest(t, c.store, Options{Root: root, PackBlocks: c.packBlocks})
			last := c.files[len(c.files)-1]
			n := last.first + last.n
			save(t, s, 0, n)
			has(t, root, paths[c.store], testLayout, c.files...)
			victim := c.files[c.victim]
			undeletable(t, filepath.Join(root, paths[c.store](victim.first, victim.n)))
			err := s.Delete(t.Context(), prompt(0, n))
			if err == nil || !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "before it in the list are left") {
				t.Errorf("says %v", err)
			}
			has(t, root, paths[c.store], testLayout, c.files[:c.victim+1]...)
		})
	}
}
