// Package rtpllm is how RTP-LLM's own 3FS tier (August 2025 to April 2026) lays blocks out
// in files: names, sizes and offsets, without any I/O.
//
//	<root>/<biz>/v2/<checkpoint>/<lora>/<tokens>/<dtype>/<mla>/<tp size>/<tp rank>/<first key>_<last key>
//
// A file is an item: some consecutive blocks of one prompt, one after the other and
// without a header; a block has each layer's K, then its V. RTP-LLM cuts the blocks of a
// prompt into items of MAX_BLOCK_SIZE_PER_ITEM, from the first block on, and the last item
// has what is left. It writes an item under its final name and leaves no sign that it is
// whole: only the size tells.
//
// The facts are those of alibaba/rtp-llm, rtp_llm/cpp/cache: DistStorage3FS.cc,
// DistKvCachePlanner.cc and DistKvCache.cc. Its first weeks had no "v2" in the path and one
// file for a whole prompt, named by the last key; Parse tells such paths, and nothing here
// reads those files.
package rtpllm
