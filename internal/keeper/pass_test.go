package keeper

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

// silentOptions are those of a directory that others serve, whose files are old after a minute.
func silentOptions(dir string, capacity int64) Options {
	o := options(dir)
	o.StateDir, o.Skip = filepath.Join(dir, ".kv3fs-keep"), ".kv3fs-keep"
	o.Grace, o.TempGrace = time.Minute, time.Minute
	o.Capacity, o.Silent = Limit{Bytes: capacity}, &Silent{}
	return o
}

// old makes a file that was last changed so long ago.
func old(t testing.TB, dir, rel string, size int, age time.Duration) {
	t.Helper()
	put(t, dir, rel, size)
	at := time.Now().Add(-age)
	must(t, os.Chtimes(filepath.Join(dir, rel), at, at))
}

// snapshot returns all that is there, with its times.
func snapshot(t testing.TB, dir string) (all []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		all = append(all, fmt.Sprint(path, st.Ino, st.Mode, st.Size, st.Nlink, st.Mtim, st.Ctim))
		return err
	}))
	return all
}

// What a pretended pass says is what goes, in that order, and it changes nothing.
func TestPretend(t *testing.T) {
	dir := t.TempDir()
	const side = gdsName + ".metadata"
	old(t, dir, "a0/a0000000000000000000000000000001", mib, 3*time.Hour)
	old(t, dir, "a0/a0000000000000000000000000000002", mib, 2*time.Hour)
	old(t, dir, "a0/a0000000000000000000000000000003.tmp", mib, 26*time.Hour)
	old(t, dir, gdsName, mib, 150*time.Minute)
	old(t, dir, side, 4096, 150*time.Minute)
	old(t, dir, "bad\xff\nname", mib, 9*time.Hour)
	old(t, dir, "hf3fs_vllm_data_file_0", mib, 9*time.Hour)
	old(t, dir, "b0/b0000000000000000000000000000001", mib, 9*time.Hour)
	old(t, dir, "b0/b0000000000000000000000000000002", mib, 9*time.Hour)
	must(t, os.Link(filepath.Join(dir, "b0/b0000000000000000000000000000002"), filepath.Join(dir, "b0/b0000000000000000000000000000003")))
	old(t, dir, "c0/c0000000000000000000000000000001", mib, 8*time.Hour)
	put(t, dir, "c0/c0000000000000000000000000000002", mib)
	old(t, dir, "d0/d0000000000000000000000000000001", mib, time.Hour)
	held, err := os.Open(filepath.Join(dir, "c0/c0000000000000000000000000000001"))
	must(t, err)
	defer held.Close()
	must(t, os.Mkdir(filepath.Join(dir, ".kv3fs-keep"), 0o700))

	pass := func(pretend bool) (went, stay []Entry) {
		k, err := New(silentOptions(dir, 8*mib))
		must(t, err)
		defer k.Close()
		must(t, k.AddPin(Pin{Pattern: "b0/b0000000000000000000000000000001"}))
		before := snapshot(t, dir)
		rest, err := k.Pass(t.Context(), pretend, func(e Entry) { went = append(went, e) })
		must(t, err)
		must(t, rest.Each(t.Context(), func(e Entry) bool { stay = append(stay, e); return true }))
		if after := snapshot(t, dir); pretend && !slices.Equal(before, after) {
			t.Fatalf("it has changed\n%q\ninto\n%q", before, after)
		}
		return went, stay
	}
	names := func(all []Entry) (names []string) {
		for _, e := range all {
			names = append(names, fmt.Sprint(e.Path, " ", e.Owner, " ", e.Why))
		}
		return names
	}
	want := []string{
		"a0/a0000000000000000000000000000003.tmp ucm-posix left-behind",
		"a0/a0000000000000000000000000000001 ucm-posix room",
		side + " lmcache-gds room",
		gdsName + " lmcache-gds room",
		"a0/a0000000000000000000000000000002 ucm-posix room",
	}
	wantStay := []string{
		"b0/b0000000000000000000000000000001 ucm-posix pinned",
		"b0/b0000000000000000000000000000002 ucm-posix several-names",
		"b0/b0000000000000000000000000000003 ucm-posix several-names",
		"bad\xff\nname unknown unknown-layout",
		"c0/c0000000000000000000000000000001 ucm-posix in-use",
		"c0/c0000000000000000000000000000002 ucm-posix young",
		"d0/d0000000000000000000000000000001 ucm-posix enough-room",
		"hf3fs_vllm_data_file_0 vllm owners-alone",
	}
	for _, pretend := range []bool{true, true, false} {
		went, stay := pass(pretend)
		if got := names(went); !slices.Equal(got, want) {
			t.Errorf("pretend %v: went\n%q\nwant\n%q", pretend, got, want)
		}
		got := names(stay)
		slices.Sort(got)
		if !slices.Equal(got, wantStay) {
			t.Errorf("pretend %v: stay\n%q\nwant\n%q", pretend, got, wantStay)
		}
		if went[0].Bytes != mib || (went[1].Unused-3*time.Hour).Abs() > time.Minute || went[1].Owner != classify.Posix {
			t.Errorf("%+v", went)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	k, err := New(silentOptions(dir, 8*mib))
	must(t, err)
	defer k.Close()
	if _, err := k.Pass(ctx, false, func(Entry) { t.Error("a file goes, though it was interrupted") }); err == nil {
		t.Error("no error")
	}
}

// A file that may not go any more, or was used since the scan, stays.
func TestSilentUnlink(t *testing.T) {
	dir := t.TempDir()
	for n := range 20 {
		old(t, dir, entry(n), mib, time.Duration(20-n)*time.Hour)
	}
	o := silentOptions(dir, 10*mib)
	allowed := 3
	o.Silent.Atime = true
	o.Silent.May = func() error {
		if allowed == 3 { // somebody reads a file that has been chosen
			now := time.Now()
			must(t, os.Chtimes(filepath.Join(dir, entry(1)), now, now.Add(-19*time.Hour)))
		}
		if allowed--; allowed < 0 {
			return os.ErrPermission
		}
		return nil
	}
	k, err := New(o)
	must(t, err)
	defer k.Close()
	_, err = k.Pass(t.Context(), false, func(e Entry) {
		if e.Path == entry(1) {
			t.Error("a file goes that has just been read")
		}
	})
	must(t, err)
	if left := len(files(t, dir)); left != 17 {
		t.Errorf("%d files are left, want 17", left)
	}
}
