package keeper

import (
	"errors"
	"fmt"
	"time"
)

// Limits are those of Options that may change while the keeper works.
type Limits struct {
	Capacity                Limit
	HighPercent, LowPercent float64       // 0: as in Options
	Grace                   time.Duration // 0: as in Options
}

// filled is the part of a limit that is used on average, once it has been reached.
func (l *Limits) filled() float64 { return (l.HighPercent + l.LowPercent) / 2 / 100 }

// errCapacityOnly says that a keeper of a capacity stays one.
var errCapacityOnly = errors.New("a capacity can be changed, but not given or taken away")

// CheckLimits reports whether SetLimits would refuse them.
func (k *Keeper) CheckLimits(l Limits) error {
	_, err := k.checked(l)
	return err
}

func (k *Keeper) checked(l Limits) (*Limits, error) {
	o := k.Options
	o.Capacity, o.HighPercent, o.LowPercent, o.Grace = l.Capacity, l.HighPercent, l.LowPercent, l.Grace
	if err := o.fill(); err != nil {
		return nil, err
	}
	if o.Capacity.None() != k.limits().Capacity.None() {
		return nil, errCapacityOnly
	}
	return &Limits{o.Capacity, o.HighPercent, o.LowPercent, o.Grace}, nil
}

// SetLimits has Run keep to other limits from now on, soon after it returns. After an error nothing has changed.
func (k *Keeper) SetLimits(l Limits) error {
	checked, err := k.checked(l)
	if err != nil {
		return fmt.Errorf("limits of %s: %w", k.Dir, err)
	}
	k.now.Store(checked)
	select {
	case k.relimited <- struct{}{}:
	default: // Run has not seen those before, and will see these
	}
	return nil
}

// limits returns those in effect.
func (k *Keeper) limits() *Limits { return k.now.Load() }
