package cred

import "golang.org/x/sys/unix"

// capabilities are the three sets of one thread, 64 bits each in two words.
type capabilities [2]unix.CapUserData

func (c capabilities) withoutEffective() capabilities {
	c[0].Effective, c[1].Effective = 0, 0
	return c
}

func loadCapabilities() (capabilities, error) {
	var c capabilities
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	err := unix.Capget(&header, &c[0])
	return c, err
}

func storeCapabilities(c capabilities) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capset(&header, &c[0])
}
