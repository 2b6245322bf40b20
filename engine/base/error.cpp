#include "engine/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace keyhole {

void assert_failed(const char* condition, const char* file, int line, const std::string& values) {
    std::fprintf(stderr, "%s:%d: assertion failed: %s %s\n", file, line, condition, values.c_str());
    std::fflush(stderr);
    std::abort();
}

}  // namespace keyhole
