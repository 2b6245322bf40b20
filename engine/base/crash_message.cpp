#include "engine/base/crash_message.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>

namespace keyhole {

namespace {

std::array<char, 401> g_words{};
std::atomic<int> g_state{0};  // 0: none, 1: being written, 2: there

/// The signal stack of a thread, until the thread ends.
class HandlerStack {
  public:
    HandlerStack() : memory_(std::make_unique<char[]>(kBytes)) {
        stack_t stack{};
        stack.ss_sp = memory_.get();
        stack.ss_size = kBytes;
        ::sigaltstack(&stack, nullptr);
    }
    ~HandlerStack() {
        stack_t none{};
        none.ss_flags = SS_DISABLE;
        ::sigaltstack(&none, nullptr);
    }
    HandlerStack(const HandlerStack&) = delete;
    HandlerStack& operator=(const HandlerStack&) = delete;

  private:
    static constexpr std::size_t kBytes = std::size_t{64} << 10;  // unwinding takes about 20 kB
    std::unique_ptr<char[]> memory_;
};

}  // namespace

void set_crash_message(std::string_view words) noexcept {
    int none = 0;
    if (!g_state.compare_exchange_strong(none, 1)) return;
    std::memcpy(g_words.data(), words.data(), std::min(words.size(), g_words.size() - 1));
    g_state = 2;
}

const char* crash_message() noexcept {
    return g_state == 2 ? g_words.data() : "";
}

void guard_stack() {
    thread_local const HandlerStack stack;
    (void)stack;
}

}  // namespace keyhole
