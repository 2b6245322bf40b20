/// How the emulated device behaves. Read from the environment at the start; tests change it between runs.
///
///     KEYHOLE_PTX=FILE            the PTX to run instead of the build's
///     KEYHOLE_PTX_SEED=N          another order of blocks and warps (default 1)
///     KEYHOLE_PTX_BLOCKS=N        blocks under way at a time (default 4)
///     KEYHOLE_PTX_STREAMS=late    work runs when somebody waits for it, not when it is submitted
///     KEYHOLE_PTX_APPROXIMATE=1   ex2.approx, rcp.approx and others are off by up to one place; mma cuts
///                                 its sums
///     KEYHOLE_PTX_COUNTS=FILE     at the end, a table of the memory traffic: see counts.h
#pragma once

#include <string>

namespace ptx {

struct Options {
    std::string file;
    unsigned seed = 1;
    unsigned n_blocks = 4;
    bool late_streams = false;
    bool approximate = false;
    std::string counts_file;
    bool counts = false;
};

Options& options();

}  // namespace ptx
