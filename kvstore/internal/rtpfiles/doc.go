// Package rtpfiles keeps blocks in the files of RTP-LLM, on a 3FS through rings or in any
// directory: those of its own 3FS tier (store RtpLlm), and those of Tair KVCM (store Kvcm),
// through which it stores today. Packages layout/rtpllm and layout/kvcm have the names.
//
// The store writes the files that the engine would, and loads those that the engines write. A
// block's key must stand for RTP-LLM's number, see keys.Int64Key; a block with another key
// has a file that no engine looks for, named by the key's 32 hexadecimal digits.
//
// Where files have several blocks, items puts them there: cut says which blocks of a Save make
// a file, pack gathers those that came apart, chains knows their order.
//
// An engine writes a file under its final name and leaves no sign that it is whole. A file
// that is shorter than it has to be or has a hole is a miss. If a piece of it was written
// that is smaller than the file system's blocks, or if the file system does not report
// holes, a file in which a piece is late looks whole.
package rtpfiles
