#include "engine/base/error.h"

#include "engine/base/crash_message.h"

#include <cstdio>
#include <cstdlib>

namespace keyhole {

void assert_failed(const char* condition, const char* file, int line, const std::string& values) {
    std::fprintf(stderr, "%s:%d: assertion failed: %s %s\n", file, line, condition, values.c_str());
    std::fflush(stderr);
    set_crash_message(
        fmt::format("{}:{}: assertion failed: {}", file, line, condition));  // values may be the user's
    std::abort();
}

}  // namespace keyhole
