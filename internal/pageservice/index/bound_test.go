package index

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
)

// Every client can initialise ranks: that must not take memory without bound.
func TestSpacesAndRanksAreBounded(t *testing.T) {
	b, err := open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	one := pageservice.RankOptions{NumPages: 1}
	b.addSpace(modelSpace, 0)
	for i := range pageservice.MaxRanks {
		b.spaces[modelSpace].addRank(i).numPages = 1
	}
	if _, err := b.Initialize(ctx, modelSpace, pageservice.MaxRanks, one); !errors.Is(err, pageservice.ErrInvalid) || !strings.Contains(err.Error(), "4096 ranks") {
		t.Fatal(err)
	}
	for i := range pageservice.MaxSpaces - 1 {
		name := pageservice.Space{Namespace: fmt.Sprint(i)}
		b.addSpace(name, 0)
		b.spaces[name].addRank(0).numPages = 1
	}
	more := pageservice.Space{Namespace: "more"}
	if _, err := b.Initialize(ctx, more, 0, one); !errors.Is(err, pageservice.ErrInvalid) || !strings.Contains(err.Error(), "4096 spaces") {
		t.Fatal(err)
	}
	if err := b.Forget(ctx, pageservice.Space{Namespace: "7"}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Initialize(ctx, more, 0, one); err != nil {
		t.Fatal(err)
	}
}

func TestAFailedInitializeLeavesNoSpaceBehind(t *testing.T) {
	full := true
	b, err := openWith(t.TempDir(), journal.Options{Commit: func(commit func() error) error {
		if full {
			return syscall.ENOSPC
		}
		return commit()
	}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Initialize(ctx, modelSpace, 0, pageservice.RankOptions{NumPages: 1}); !errors.Is(err, pageservice.ErrUnavailable) {
		t.Fatal(err)
	}
	if len(b.all()) != 0 {
		t.Fatal("a space is left behind")
	}
	full = false
	if _, err := b.Initialize(ctx, modelSpace, 0, pageservice.RankOptions{NumPages: 1}); err != nil {
		t.Fatal(err)
	}
}

// A log of short keys in a space with a long name is not waste: what compaction cannot
// remove must be less than twice the bytes that are counted as live.
func TestALongNameIsNotWaste(t *testing.T) {
	b, err := open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	name := pageservice.Space{Namespace: strings.Repeat("n", 64), Set: "sglang/" + strings.Repeat("p", 64) + "/0"}
	if _, err := b.Initialize(ctx, name, 0, pageservice.RankOptions{NumPages: 100}); err != nil {
		t.Fatal(err)
	}
	s, needed := b.find(name), 0
	for i := range 100 {
		key := fmt.Sprint(i)
		grants, err := b.Reserve(ctx, name, 0, []string{key}, true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Confirm(ctx, name, 0, []pageservice.Placed{{Key: key, Page: grants[0].Page}}, nil); err != nil {
			t.Fatal(err)
		}
		rec := &record{kind: confirmed, space: s.name, pages: []uint32{uint32(grants[0].Page)}, keys: []string{key}}
		needed += len(rec.encode()) + 4
	}
	if live := b.liveBytes.Load(); live < int64(needed) {
		t.Errorf("%d bytes are counted as live, but %d are needed", live, needed)
	}
}
