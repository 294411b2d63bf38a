package keeper

import (
	"math"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper/curve"
	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
	"github.com/kv3fs/kv3fs/internal/keeper/policy"
)

// learner learns from the uses of entries how much a further one is worth, and what a larger
// or smaller directory would have served. It is the inventory's Uses.
type learner struct {
	tuner  *policy.Tuner
	ghosts *policy.Ghosts
	curve  *curve.Estimator
}

func newLearner() *learner {
	return &learner{
		tuner: policy.NewTuner(policy.Options{CapacityBytes: math.MaxInt64}), ghosts: policy.NewGhosts(policy.GhostKeys),
		curve: curve.New(curve.Options{}),
	}
}

func (l *learner) Follows(key uint64) bool { return l.tuner.Samples(key) || l.curve.Follows(key) }

// together is within what time uses count as those of one prompt. With a second, prompts that have nothing to do with
// each other would be one piece of evidence on a busy host.
const together = time.Second / 2

func (l *learner) Used(u inventory.Use) {
	nowMs := u.At.Truncate(together).Milliseconds()
	if !u.Followed {
		l.curve.Pass(nowMs, !u.Stored)
		return
	}
	l.curve.Use(u.Key, u.Bytes, nowMs, !u.Stored)
	l.tuner.Use(u.Key, u.Bytes, nowMs, u.Uses)
}

func (l *learner) Left(key uint64, uses int) { l.ghosts.Leave(key, uses) }

func (l *learner) Back(key uint64) (uses int) { return l.ghosts.Return(key) }

// Curve says which part of the uses an LRU cache would have served, at an eighth of the
// capacity, at eight times it, and at half octaves between: the seventh of the 13 points is the
// capacity, or what the directory takes where there is none. It is nil before the first use.
//
// A use is that an entry was read, or stored. That it was stored is a use that no cache of that size or
// smaller has served, so what is stored for the first time is a miss at any size. Uses fade with
// a half-life of an hour.
func (k *Keeper) Curve() []curve.Point {
	capacity := k.inv.Root().Limit()
	if capacity == inventory.Unlimited {
		capacity = k.inv.Root().Bytes()
	}
	if _, uses := k.learner.curve.Served(); uses == 0 {
		return nil
	}
	const from, to, perOctave = -3, 3, 2
	var points []curve.Point
	for i := from * perOctave; i <= to*perOctave; i++ {
		size := float64(capacity) * math.Exp2(float64(i)/perOctave)
		points = append(points, curve.Point{
			CapacityBytes: int64(min(size, math.MaxInt64/2)),
			HitRatio:      k.learner.curve.HitRatio(int64(min(size*k.limits().filled(), math.MaxInt64/2))),
		})
	}
	return points
}

// Served says which part of the uses that Curve is about the directory has served, and how
// many these are.
func (k *Keeper) Served() (hitRatio, uses float64) { return k.learner.curve.Served() }
