package integrity

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A scrub does not read the holes of a file, of which a user can make as many as it likes.
func TestScrubSkipsHoles(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		o := create(t, s, filepath.Join(dir, "f"))
		offs := []int64{0, 5 << 30, 1<<40 + 7*RangeBytes}
		for _, off := range offs {
			o.write(random(rng, RangeBytes), off)
		}
		c, err := s.NewScrubber()
		if err != nil {
			t.Fatal(err)
		}
		total, compared := int64(0), int64(0)
		most := int64(len(offs)) * scrubBytes
		err = c.File(t.Context(), o.fd, -1, func(read, verified int64) error {
			total, compared = total+read, compared+verified
			if total > most {
				return errors.New("it reads holes")
			}
			return nil
		}, func(bad Damage) error { t.Errorf("%s: %v", dir, bad); return nil })
		if err != nil || compared != int64(len(offs))*RangeBytes {
			t.Errorf("%s: %d bytes were read, %d compared: %v", dir, total, compared, err)
		}
		c.Close()
		o.close()
		s.Close()
	}
}

// Data that has become a hole is damage, at the end of a file, too.
func TestScrubFindsLostData(t *testing.T) {
	rng := rngFor(t)
	for _, dir := range dirs(t) {
		s := openStore(t, dir)
		o := create(t, s, filepath.Join(dir, "f"))
		const size = 7*scrubBytes + 999
		for off := int64(0); off < size; off += scrubBytes {
			o.write(random(rng, min(scrubBytes, size-off)), off)
		}
		lost := int64(0)
		for _, hole := range [][2]int64{{2*scrubBytes + RangeBytes, 3 * scrubBytes}, {5 * scrubBytes, 8 * scrubBytes}} {
			unseen(t, o.sums, o.fd, func() error {
				return unix.Fallocate(o.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, hole[0], hole[1]-hole[0])
			})
			lost += min(hole[1], size) - hole[0]
		}
		c, err := s.NewScrubber()
		if err != nil {
			t.Fatal(err)
		}
		bad, compared := int64(0), int64(0)
		err = c.File(t.Context(), o.fd, -1, func(_, verified int64) error {
			compared += verified
			return nil
		}, func(d Damage) error { bad += d.Bytes; return nil })
		if err != nil || s.fine && (bad != lost || compared != size) {
			t.Errorf("%s: %d of %d lost bytes were found, %d of %d compared: %v", dir, bad, lost, compared, int64(size), err)
		}
		c.Close()
		o.close()
		s.Close()
	}
}
