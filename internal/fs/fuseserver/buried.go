package fuseserver

import (
	"fmt"
	"slices"
)

// noteMounts records which mount is this one and which mounts of dead daemons it covers.
// before are the mounts that were there before it. The lock of the mount point is not always
// to be had, so another daemon may have mounted meanwhile: then this one has lost the race.
func (m *Mount) noteMounts(before []mountpoint) error {
	all, err := mountsAt(m.point)
	if err != nil {
		return err
	}
	found := 0
	for _, at := range all {
		switch {
		case !slices.ContainsFunc(before, func(b mountpoint) bool { return b.id == at.id && b.minor == at.minor }):
			found++
			m.id, m.minor = at.id, at.minor
		case !at.isFUSE():
			return m.alone(found)
		default:
			m.buried = append(m.buried, at.minor)
		}
	}
	return m.alone(found)
}

// alone returns an error unless one mount was found that had not been there before.
func (m *Mount) alone(found int) error {
	switch found {
	case 0:
		return fmt.Errorf("mount point %s: somebody removed the mount as soon as it was made: start the daemon again", m.point)
	case 1:
		return nil
	}
	return fmt.Errorf("mount point %s: another daemon mounted there at the same time: stop that one, or choose another mount point", m.point)
}

// removeBuried detaches the mounts of dead daemons that this one covered, once it is
// unmounted itself. What fails stays for the next daemon, which takes it over.
func (m *Mount) removeBuried() {
	if len(m.buried) == 0 {
		return
	}
	defer lockPoint(m.point)()
	all, err := mountsAt(m.point)
	if err != nil {
		return
	}
	for _, at := range all {
		// Where somebody else has removed it, its number may be that of a living daemon's.
		if !at.isFUSE() || !slices.Contains(m.buried, at.minor) || !Dead(m.point) || detach(m.point, true) != nil {
			return
		}
	}
}
