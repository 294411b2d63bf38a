package fuseserver

import "slices"

// noteMounts records which mount is this one and which mounts of dead daemons it covers.
func (m *Mount) noteMounts() {
	for i, at := range mountsAt(m.point) {
		switch {
		case i == 0:
			m.minor = at.minor
		case !at.isFUSE():
			return
		default:
			m.buried = append(m.buried, at.minor)
		}
	}
}

// removeBuried detaches the mounts of dead daemons that this one covered, once it is
// unmounted itself. What fails stays for the next daemon, which takes it over.
func (m *Mount) removeBuried() {
	if len(m.buried) == 0 {
		return
	}
	defer lockPoint(m.point)()
	for _, at := range mountsAt(m.point) {
		// Where somebody else has removed it, its number may be that of a living daemon's.
		if !at.isFUSE() || !slices.Contains(m.buried, at.minor) || !dead(m.point) || detach(m.point, true) != nil {
			return
		}
	}
}
