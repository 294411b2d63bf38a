package ringbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/usrbio"
)

// bigIovBytes is the size of the iov that RTP-LLM and similar programs register at start.
const bigIovBytes = 4 << 30

const (
	ringRounds = 101
	iovRounds  = 11
)

// Setup is the cost of making rings and iovs, as opposed to using them. Some clients make
// a ring for every file.
type Setup struct {
	RingMs measure.Spread `json:"ring_create_destroy_ms"`
	// BigIovMs is nil if /dev/shm is too small; BigIovSkipped says so.
	BigIovMs      *measure.Spread `json:"iov_4gib_register_ms,omitempty"`
	BigIovSkipped string          `json:"iov_4gib_skipped,omitempty"`
}

func measureSetup(ctx context.Context, mount string) (s Setup, err error) {
	m, err := usrbio.Open(ctx, mount)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, m.Close(context.Background())) }()

	var ms []float64
	for range ringRounds {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		began := time.Now()
		r, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 128})
		if err != nil {
			return s, err
		}
		if err := r.Close(ctx); err != nil {
			return s, err
		}
		ms = append(ms, milliseconds(time.Since(began)))
	}
	s.RingMs = measure.SpreadOf(ms)

	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil {
		return s, err
	}
	if free := int64(st.Bavail) * st.Bsize; free < bigIovBytes {
		s.BigIovSkipped = fmt.Sprintf("/dev/shm has %s free", measure.SizeText(free))
		return s, nil
	}
	ms = ms[:0]
	for range iovRounds {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		began := time.Now()
		v, err := m.NewIov(ctx, bigIovBytes, usrbio.IovOptions{}) // sparse: no page is touched
		if err != nil {
			return s, err
		}
		ms = append(ms, milliseconds(time.Since(began)))
		if err := v.Close(ctx); err != nil {
			return s, err
		}
	}
	big := measure.SpreadOf(ms)
	s.BigIovMs = &big
	return s, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
