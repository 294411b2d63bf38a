package integrity

import (
	"errors"
	"path/filepath"
	"testing"
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
