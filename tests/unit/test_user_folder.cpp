#include "engine/base/user_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

namespace keyhole::test_user_folder {
namespace {

/// Sets a variable for one test; nullptr removes it.
class Variable {
  public:
    Variable(const char* name, const char* value) : name_(name) {
        if (const char* before = std::getenv(name)) before_ = before;
        set(value);
    }
    ~Variable() { set(before_ ? before_->c_str() : nullptr); }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;
    void set(const char* value) const { value != nullptr ? ::setenv(name_, value, 1) : ::unsetenv(name_); }

  private:
    const char* name_;
    std::optional<std::string> before_;
};

TEST(UserFolder, FollowsTheXdgVariables) {
    const Variable cache("XDG_CACHE_HOME", "/c"), config("XDG_CONFIG_HOME", "/s"),
        data("XDG_DATA_HOME", "/d"), state("XDG_STATE_HOME", "/t");
    EXPECT_EQ(user_folder(UserFolder::cache), "/c/keyhole");
    EXPECT_EQ(user_folder(UserFolder::config), "/s/keyhole");
    EXPECT_EQ(user_folder(UserFolder::data), "/d/keyhole");
    EXPECT_EQ(user_folder(UserFolder::state), "/t/keyhole");
}

TEST(UserFolder, IsBelowHomeWithoutThem) {
    const Variable home("HOME", "/home/u"), cache("XDG_CACHE_HOME", nullptr),
        config("XDG_CONFIG_HOME", "relative/paths/do/not/count"), data("XDG_DATA_HOME", ""),
        state("XDG_STATE_HOME", nullptr);
    EXPECT_EQ(user_folder(UserFolder::cache), "/home/u/.cache/keyhole");
    EXPECT_EQ(user_folder(UserFolder::config), "/home/u/.config/keyhole");
    EXPECT_EQ(user_folder(UserFolder::data), "/home/u/.local/share/keyhole");
    EXPECT_EQ(user_folder(UserFolder::state), "/home/u/.local/state/keyhole");
    home.set(nullptr);
    EXPECT_TRUE(user_folder(UserFolder::data).empty());
    home.set("");
    EXPECT_TRUE(user_folder(UserFolder::cache).empty());
}

}  // namespace
}  // namespace keyhole::test_user_folder
