/// The one exception type, and the assertion for bugs in Keyhole. Any thread. Knows nothing of the other
/// folders.
///
/// Throw Error through fail() when something outside fails (file, memory, device, spec). Its message is one
/// line: the action that failed, the object, and a remedy for the user. Use KH_ASSERT for a bug in Keyhole.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace keyhole {

enum class ErrorCode {
    wrong_use,    ///< command line, lane spec or command is wrong: exit status 2
    bad_file,     ///< a file is missing, truncated or not of the expected format
    unsupported,  ///< valid input that this build cannot handle
    no_memory,
    io,  ///< writing failed
    device,
    cancelled,
};

class Error : public std::runtime_error {
  public:
    Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
    ErrorCode code() const { return code_; }

  private:
    ErrorCode code_;
};

/// Throws Error with a formatted message.
template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
    throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Prints the failed condition with file and line and the formatted values, then aborts.
[[noreturn]] void assert_failed(const char* condition, const char* file, int line, const std::string& values);

}  // namespace keyhole

#ifdef KH_NO_ASSERT
#define KH_ASSERT(condition, ...) ((void)0)
#else
/// KH_ASSERT(n > 0) or KH_ASSERT(n > 0, "n={}", n)
#define KH_ASSERT(condition, ...) \
    ((condition) ? (void)0        \
                 : ::keyhole::assert_failed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)))
#endif
