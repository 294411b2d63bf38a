package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// dataFlags say what a data directory must be before it is used. Without them, the
// directory beneath a disk that is not mounted is served in the disk's place.
type dataFlags struct {
	DataMustExist   bool `help:"Refuse to start if the data directory does not exist, instead of creating it. For a directory on a disk that may not be mounted."`
	DataMustBeMount bool `help:"Refuse to start if the data directory is not itself a mount point."`
}

// check returns an error if the data directory is not what it must be.
func (f dataFlags) check(data string) error {
	if !f.DataMustExist && !f.DataMustBeMount {
		return nil
	}
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, data, 0, unix.STATX_TYPE, &st)
	switch {
	case err != nil:
		return fmt.Errorf("data directory %s: %w; mount its disk, or create it", data, err)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("data directory %s is not a directory", data)
	case f.DataMustBeMount && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0:
		return fmt.Errorf("data directory %s is not a mount point; mount its disk there, or leave out --data-must-be-mount", data)
	}
	return nil
}
