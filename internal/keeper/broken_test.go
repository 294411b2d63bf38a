package keeper

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// What its writer did not complete is listed and goes; what looks like it but is whole, in use,
// or an engine's own to remove stays.
func TestBroken(t *testing.T) {
	opts := options(t.TempDir())
	rtp := "chat/v2/1234/no_lora/64/14/0/4/3/"
	rank1, rank2 := strings.TrimSuffix(rtp, "3/")+"1/", strings.TrimSuffix(rtp, "3/")+"2/"
	other := strings.Replace(gdsName, "17ac16e7b5ac22", "17ac16e7b5ac23", 1)
	other = "66/63/" + filepath.Base(other)
	sizes := map[string]int{
		rtp + "1_1": 8192, rtp + "2_2": 8192, rtp + "3_3": 8192, rtp + "7_7": 8192, rtp + "8_8": 8192, rtp + "1_9": 3 * 8192, rtp + "1_8": 2 * 8192,
		rtp + "1_5":                        8192, // two blocks at least
		rtp + "1_7":                        3 * 8192,
		rank1 + "1_7":                      7 * 8192, // so that of rank 3 has too few
		rank2 + "1_7":                      7 * 8192,
		rank2 + "1_8":                      9 * 8192, // one rank against the other: either may be wrong
		rank2 + "1_9":                      3 * 8192,
		rank2 + "1_1":                      8192,
		rtp + "4_4":                        1000,
		rtp + "5_5":                        100, // in use
		rtp + "6_6":                        101, // pinned
		"instance/tp0/11":                  8192,
		"instance/tp0/12":                  8192,
		"instance/tp0/13":                  100,
		"instance/tp0/14_a":                8192, // its first block can be read
		"instance/tp0/15_a":                8191,
		"instance/tp0/16":                  0,
		"instance/tp0/17":                  101, // pinned
		"smaller/tp0/4096":                 4096,
		"smaller/tp0/4097":                 4096, // blocks are smaller now
		"instance/tp0/18":                  4096,
		"instance/tp0/19":                  4096, // two of a size are no accident
		"ckpt/tp0/f":                       100,  // somebody's checkpoint
		"ckpt/tp0/cafe":                    0,
		entry(1):                           0,
		entry(2):                           10,
		gdsName:                            10000,
		gdsName + ".metadata":              4096,
		other + ".metadata":                4096, // its data is missing
		"unknown":                          0,
		".temp/" + fmt.Sprintf("%032x", 7): 5,
	}
	for i := range 16 { // whole ones tell how large a block is
		sizes[fmt.Sprintf("instance/tp0/5%014x", i)], sizes[fmt.Sprintf("smaller/tp0/5%014x", i)] = 8192, 8192
		sizes[fmt.Sprintf("instance/tp0/5%d_a", i)], sizes[fmt.Sprintf("ckpt/tp0/1%x", i)] = 3*8192, 8192
	}
	// What was cut was written before some of the others, but in one directory.
	old, older := time.Now().Add(-time.Minute), time.Now().Add(-2*time.Minute)
	for rel, size := range sizes {
		put(t, opts.Dir, rel, size)
		at := older
		if size == 8192 && rel != rtp+"1_5" && !strings.HasPrefix(rel, "smaller/") || size == 4096 && strings.HasPrefix(rel, "smaller/") {
			at = old
		}
		must(t, os.Chtimes(filepath.Join(opts.Dir, rel), at, at))
	}
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	must(t, k.inv.Scan(context.Background()))
	must(t, k.AddPin(Pin{Pattern: rtp + "6*"}))
	must(t, k.AddPin(Pin{Pattern: "instance/tp0/17"}))
	k.Opened(keyOf(t, filepath.Join(opts.Dir, rtp+"5_5")), FileKey{}, "")

	var listed []string
	must(t, k.Broken(context.Background(), k.inv.Root(), func(b Broken) bool {
		listed = append(listed, fmt.Sprintf("%s: %v, %v", b.Path, b.Trouble, b.Removable))
		return true
	}))
	slices.Sort(listed)
	if want := []string{
		".temp/00000000000000000000000000000007: a temporary file that was not completed, true",
		other + ".metadata: its data file is missing, true",
		entry(1) + ": empty, true",
		rtp + "1_5: shorter than its name says, true",
		rtp + "1_7: shorter than its name says, true",
		rtp + "4_4: shorter than its name says, true",
		rtp + "6_6: shorter than its name says, true",
		rtp + "1_8: shorter than its name says, false",
		"ckpt/tp0/cafe: empty, false",
		"ckpt/tp0/f: shorter than its name says, false",
		"instance/tp0/13: shorter than its name says, true",
		"instance/tp0/14_a: fewer blocks than its name says, false",
		"instance/tp0/15_a: shorter than its name says, true",
		"instance/tp0/16: empty, true",
		"instance/tp0/17: shorter than its name says, true",
		"instance/tp0/18: shorter than its name says, false",
		"instance/tp0/19: shorter than its name says, false",
		"smaller/tp0/4096: shorter than its name says, false",
		"smaller/tp0/4097: shorter than its name says, false",
	}; !slices.Equal(listed, slices.Sorted(slices.Values(want))) {
		t.Errorf("listed are\n%s\nwant\n%s", strings.Join(listed, "\n"), strings.Join(want, "\n"))
	}

	before := files(t, opts.Dir)
	var log bytes.Buffer
	k.Log = slog.New(slog.NewTextHandler(&log, nil))
	k.reapBroken(context.Background(), k.inv.Below(k.inv.Root()))
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines in the log: users can make millions of such files\n%s", n, log.String())
	}
	gone := slices.DeleteFunc(before, func(rel string) bool {
		_, err := os.Lstat(filepath.Join(opts.Dir, rel))
		return err == nil
	})
	want := []string{".temp/00000000000000000000000000000007", other + ".metadata", entry(1), rtp + "1_5", rtp + "1_7", rtp + "4_4", "instance/tp0/13", "instance/tp0/15_a", "instance/tp0/16"}
	slices.Sort(want)
	if !slices.Equal(gone, want) || k.Stats().Reaped != int64(len(want)) {
		t.Errorf("%q are gone, %+v; want %q", gone, k.Stats(), want)
	}
}

// A file that is not whole is listed at once, unless somebody has it open, and left to its writer for the grace period.
func TestBrokenIsYoung(t *testing.T) {
	opts := options(t.TempDir())
	opts.Grace, opts.TempGrace = time.Hour, time.Hour
	temporary := ".temp/" + fmt.Sprintf("%032x", 7)
	put(t, opts.Dir, entry(1), 0)
	put(t, opts.Dir, entry(2), 0)
	put(t, opts.Dir, temporary, 5)
	k, err := New(opts)
	must(t, err)
	defer k.Close()
	must(t, k.inv.Scan(context.Background()))
	writer := keyOf(t, filepath.Join(opts.Dir, entry(2)))
	k.Opened(writer, FileKey{}, "")
	k.reapBroken(context.Background(), k.inv.Below(k.inv.Root()))
	k.reap(context.Background())
	if got := files(t, opts.Dir); len(got) != 3 {
		t.Errorf("left are %q", got)
	}
	listed := func(want ...string) {
		t.Helper()
		var got []string
		must(t, k.List(t.Context(), Query{Broken: true}, func(l Listed) error {
			got = append(got, fmt.Sprintf("%s: %s, %v", l.Path, l.Trouble, l.Young))
			return nil
		}))
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("listed are %q; want %q", got, want)
		}
	}
	listed(temporary+": a temporary file that was not completed, true", entry(1)+": empty, true")
	k.Closed(writer, 0) // it has died
	listed(temporary+": a temporary file that was not completed, true", entry(1)+": empty, true", entry(2)+": empty, true")

	old := time.Now().Add(-2 * time.Hour)
	must(t, os.Chtimes(filepath.Join(opts.Dir, entry(1)), old, old))
	listed(temporary+": a temporary file that was not completed, true", entry(1)+": empty, false", entry(2)+": empty, true")
	k.reapBroken(context.Background(), k.inv.Below(k.inv.Root()))
	if got := files(t, opts.Dir); len(got) != 2 || slices.Contains(got, entry(1)) {
		t.Errorf("left are %q", got)
	}
}
