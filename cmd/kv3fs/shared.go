package main

import "github.com/kv3fs/kv3fs/internal/daemon"

// sharedFlag is the value of --shared: auto, on or off.
type sharedFlag string

func (f sharedFlag) sharing() daemon.Sharing {
	switch f {
	case "on":
		return daemon.SharingOn
	case "off":
		return daemon.SharingOff
	}
	return daemon.SharingAuto
}
