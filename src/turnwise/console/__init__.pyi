from turnwise.console.app import mount as mount
