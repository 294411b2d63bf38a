package integrity

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func always() bool { return true }

// Tables of sums take no more memory than there is for them, and a user's no more than its part. What finds none is
// unknown, and is found again in the log once there is room.
func TestMemoryIsBounded(t *testing.T) {
	daemontest.NeedRoot(t)
	const most, hog, stride = 64, 12345, chunkRanges * RangeBytes
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		s.chunks = quota.New(most)
		o := create(t, s, filepath.Join(dir, "hog"))
		o.close()
		if err := os.Chown(o.path, hog, hog); err != nil {
			t.Fatal(err)
		}
		s.save(true)
		o = open(t, s, o.path, unix.O_RDWR)
		content := random(rng, RangeBytes)
		for i := range int64(most) {
			o.write(content, i*stride)
		}
		if n := s.chunks.Used(hog); n != most/4 || s.Counters().Forgotten == 0 {
			t.Errorf("%s: a user has %d of %d chunks; forgotten %d times", dir, n, most, s.Counters().Forgotten)
		}
		verified := int64(0)
		for i := range int64(most) {
			b, bad, found, n := o.read(i*stride, RangeBytes)
			if found {
				t.Fatalf("%s: a false alarm: %v", dir, bad)
			}
			mustBe(t, dir, b, content)
			verified += n
		}
		if verified != most/4*RangeBytes {
			t.Errorf("%s: %d bytes were compared", dir, verified)
		}
		other := create(t, s, filepath.Join(dir, "other"))
		other.write(content, 0)
		if _, _, _, n := other.read(0, RangeBytes); n != RangeBytes {
			t.Errorf("%s: nothing is left for others", dir)
		}
		o.close()
		other.close()
		s.save(true)
		if n := s.chunks.Total(); n != 0 {
			t.Errorf("%s: %d chunks of files that nobody uses", dir, n)
		}

		s.chunks = quota.New(1) // which is too little for what was saved
		o = open(t, s, o.path, unix.O_RDONLY)
		if _, bad, found, n := o.read(0, RangeBytes); found || n != 0 {
			t.Errorf("%s: without memory: %d bytes compared, %v", dir, n, bad)
		}
		o.close()
		s.save(true)
		s.chunks = quota.New(most)
		o = open(t, s, o.path, unix.O_RDONLY)
		if _, _, _, n := o.read(0, RangeBytes); n != RangeBytes {
			t.Errorf("%s: what was saved is lost", dir)
		}
		o.close()
		s.Close()
		if n := s.chunks.Total(); n != 0 {
			t.Errorf("%s: %d chunks once closed", dir, n)
		}
	}
}

// While many files are closed, a large table is not written to the log each time, and stays known.
func TestLargeTableAmongMany(t *testing.T) {
	dir := dirs(t)[0]
	s := openStore(t, dir)
	defer s.Close()
	s.idle = mostIdle // as if so many files had just been closed
	o := create(t, s, filepath.Join(dir, "f"))
	for i := range int64(mostAtOnce + 1) {
		o.sums.set(i*chunkRanges+1, newWord(1, firm))
	}
	o.sums.has.Store(true)
	o.write([]byte{1}, 0)
	o.close()
	for range 10 {
		o = open(t, s, o.path, unix.O_RDWR)
		o.write([]byte{1}, 0)
		o.close()
	}
	if n := s.log.files(); n != 0 {
		t.Errorf("the sums of %d files were written at once", n)
	}
	small := create(t, s, filepath.Join(dir, "small"))
	small.write([]byte{1}, 0)
	small.close()
	if n := s.log.files(); n != 1 {
		t.Errorf("the sums of %d small files were written", n)
	}
	s.save(false)
	if n := s.log.files(); n != 2 {
		t.Errorf("the sums of %d files are in the log", n)
	}
	o = open(t, s, o.path, unix.O_RDONLY)
	if n := len(o.sums.words); n != mostAtOnce+1 || s.Counters().Forgotten != 0 {
		t.Errorf("%d chunks are known; forgotten %d times", n, s.Counters().Forgotten)
	}
	o.close()
}
