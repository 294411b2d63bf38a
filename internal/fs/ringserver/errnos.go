package ringserver

import "syscall"

// ErrnoMeaning says what the result of a request means that is an errno, negated, and what to do.
type ErrnoMeaning struct {
	Errno   syscall.Errno
	Meaning string
}

// Errnos returns what requests fail with. Another errno is one that the data directory's file system answered.
func Errnos() []ErrnoMeaning {
	return []ErrnoMeaning{
		{syscall.EIO, "The data directory's file system failed or hangs (dmesg, /readyz), or the bytes are not those that were written (kv3fs scrub). Engines take it for a miss."},
		{syscall.ENOSPC, "The disk or --capacity is full, and nothing more may go: kv3fs stat says why."},
		{syscall.EDQUOT, "A quota is reached (kv3fs quota ls, or the file system's own for the user), and nothing of it may go."},
		{syscall.ETIMEDOUT, "The request was not done within --deadline: the disk is slow or hangs. The log names file and offset."},
		{syscall.ESTALE, "The server of a shared data directory no longer knows the file: look at its log. A client that opens and registers the file again goes on."},
		{syscall.ENODATA, "The ring forbids holes (flag 2), and a part of what it asked for was never written."},
		{syscall.EACCES, "The ring's user may not read or write the file, or the buffer is another user's."},
		{syscall.EROFS, "The mount or the user's setting is read-only, or the data directory's file system became so (dmesg)."},
		{syscall.EBADF, "The client named a file that the daemon does not know, or that is no regular file: it was not registered, or its registration has ended."},
		{syscall.EINVAL, "The client's request is wrong: its place in the ring, the buffer's name or a range outside the buffer. Or the buffer was unregistered meanwhile."},
		{syscall.EFBIG, "The range ends beyond the largest offset of a file."},
		{syscall.ESHUTDOWN, "The daemon is stopping. Clients register again with the next one."},
	}
}
