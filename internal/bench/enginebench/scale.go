package enginebench

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/prefill"
	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/shm"
)

const (
	// copiesPerByte is how often a byte may be copied, checked and passed on between a
	// disk's cache and the engine, on both sides of a process boundary, with a margin for
	// other work. The simulated store must be slower than a plain copy by this factor;
	// otherwise the machine is measured and not the store.
	copiesPerByte = 16

	// What a bench uses of the storage and of /dev/shm if no scale is given.
	mostStoredBytes = 8 << 30
	mostPoolBytes   = 2 << 30

	// defaultTargetBandwidth is what the scale is chosen for where no store is simulated.
	defaultTargetBandwidth = 40 << 30
)

// demand is what a workload needs of the machine at full size.
type demand struct {
	storedBytes int64
	poolBytes   int64
}

// chooseScale returns the smallest power of two at which this machine can move as many
// bytes as the simulated store, and has space for the workload.
func chooseScale(profiles []*prefill.Profile, blockTokens int, bandwidth, copyGBps float64, d demand, freeBytes int64) (int64, error) {
	most := int64(1 << 20)
	for _, p := range profiles {
		layer, err := layerBytes(p, blockTokens)
		if err != nil {
			return 0, err
		}
		most = min(most, powerOfTwoIn(layer))
	}
	if bandwidth == 0 {
		bandwidth = defaultTargetBandwidth
	}
	stored := int64(mostStoredBytes)
	if freeBytes > 0 {
		stored = min(stored, freeBytes/2)
	}
	pool := int64(mostPoolBytes)
	if free, err := shm.FreeBytes(); err == nil {
		pool = min(pool, free/2)
	}
	scale := int64(1)
	for bandwidth/float64(scale) > copyGBps*1e9/copiesPerByte || d.storedBytes/scale > stored || d.poolBytes/scale > pool {
		scale *= 2
		if scale > most {
			return 0, fmt.Errorf("bench: even at 1/%d of its size the workload needs %s of storage and %s of /dev/shm, and is to take at most %s and %s; choose fewer or shorter prompts, or --scale",
				most, measure.SizeText(d.storedBytes/most), measure.SizeText(d.poolBytes/most), measure.SizeText(stored), measure.SizeText(pool))
		}
	}
	return scale, nil
}

// checkSpace returns an error if a given scale needs more space than there is.
func checkSpace(scale int64, d demand, freeBytes int64) error {
	if need := d.storedBytes / scale; freeBytes > 0 && need > freeBytes-freeBytes/20 {
		return fmt.Errorf("bench: the workload stores %s and there is space for %s; choose a larger --scale, fewer requests or another place", measure.SizeText(need), measure.SizeText(freeBytes))
	}
	return nil
}

// copyRate returns how fast this machine copies memory with all processors, in GB/s.
func copyRate() float64 {
	const chunk, rounds = 64 << 20, 2 // more than processors keep
	workers := runtime.GOMAXPROCS(0)
	var best float64
	for range 3 {
		var ready, done sync.WaitGroup
		start := make(chan struct{})
		for range workers {
			ready.Add(1)
			done.Go(func() {
				from, to := make([]byte, chunk), make([]byte, chunk)
				for i := 0; i < chunk; i += 4096 {
					from[i], to[i] = 1, 1
				}
				ready.Done()
				<-start
				for range rounds {
					copy(to, from)
				}
			})
		}
		ready.Wait()
		began := time.Now()
		close(start)
		done.Wait()
		best = max(best, float64(workers*rounds*chunk)/time.Since(began).Seconds()/1e9)
	}
	return best
}
