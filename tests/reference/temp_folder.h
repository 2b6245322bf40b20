/// An empty temporary folder for a test, named by its purpose and the process id, and removed with the
/// object. Belongs to the test's thread.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

namespace reference {

class TempFolder {
  public:
    explicit TempFolder(const std::string& purpose)
        : path_(std::filesystem::temp_directory_path() /
                ("keyhole-" + purpose + "-" + std::to_string(getpid()))) {
        std::filesystem::remove_all(path_);
        std::filesystem::create_directories(path_);
    }
    ~TempFolder() { std::filesystem::remove_all(path_); }
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

}  // namespace reference
